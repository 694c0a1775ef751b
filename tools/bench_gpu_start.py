"""From the start of the process to the first finished step of L0_sanity, of tools/bench_gpu.py: gpu_start.json."""

import os
import pathlib
import subprocess
import tempfile
import time

from bench_gpu_common import ROOT, Failed, last_words, note, side


class Start:
    def __init__(self, bench):
        self.bench = bench
        self.options = bench.options

    def once(self):
        """Seconds until the program has trained its one step and ended: an upper bound of the first step's end."""
        with tempfile.TemporaryDirectory() as folder:
            words = ["train", f"--config-path={ROOT / 'configs'}", "--config-name=L0_sanity", f"dataset.path={self.options.genome}"]
            words += ["device=cuda", "num_train_steps=1", f"logger.run_dir={folder}/run", "checkpoint.save_final_model=false"]
            words += ["validation.enabled=false", "dtype=bf16"]
            return self.seconds_of(*words)

    def seconds_of(self, *words):
        begin = time.monotonic()
        done = subprocess.run([str(self.options.bin / "moebius"), *words], cwd=ROOT, capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise Failed(last_words(done.stderr or done.stdout))
        return time.monotonic() - begin

    def dropped(self):
        """Seconds of runs that each read the program, CUDA's libraries and the genome from the disk; empty where one may not empty the cache."""
        cache = pathlib.Path("/proc/sys/vm/drop_caches")
        if not os.access(cache, os.W_OK):
            return []
        times = []
        for _ in range(3 if self.options.quick else 10):
            os.sync()
            cache.write_text("3\n", encoding="ascii")
            times.append(self.once())
        return times

    def run(self):
        # What a machine's first process waits for, one thing after another: the program's bytes from the disk, the driver and
        # its first context, and what else the first run loads. The first two are nothing on a machine that has run it before.
        disk = self.seconds_of("--version")
        driver = self.seconds_of("info")
        driver_again = self.seconds_of("info")
        cold = self.once()
        warm = [self.once() for _ in range(3 if self.options.quick else 10)]
        note(
            f"start: {disk:.2f} s to read the program, {driver:.2f} with the card asked (again {driver_again:.2f}), {cold:.2f} the first "
            f"time, then {min(warm):.2f} to {max(warm):.2f} ({self.bench.seconds()})"
        )
        about = {"from_to": "start of the process to its end after one step", "first_run_seconds": round(cold, 3)}
        about["before_it"] = {"version": round(disk, 3), "info": round(driver, 3), "info_again": round(driver_again, 3)}
        self.bench.cases["start"].append(self.bench.case("start.l0_gpu.bf16", "s", "lower", side(warm, variant="cuda"), {}, **about))
        if dropped := self.dropped():
            note(f"start: {min(dropped):.2f} to {max(dropped):.2f} s from the disk ({self.bench.seconds()})")
            about = {"from_to": about["from_to"] + ", nothing of the program, its libraries or the genome in memory"}
            self.bench.cases["start"].append(self.bench.case("start.l0_gpu.bf16.from_disk", "s", "lower", side(dropped, variant="cuda"), {}, **about))
        self.bench.write("start")
