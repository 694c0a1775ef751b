#!/usr/bin/env python3
"""Measures Moebius on the CPU and writes bench/results/*.json: run by tools/bench.sh.

    tools/bench_cpu.py [--only step,ops,load,run,build] [--rounds N] [--threads N] [--quick] [--build DIR] [--python FILE]

  step  a training step of L0_sanity beside Hugging Face's, in turns                         cpu_step.json
  ops   every benchmark case of the operations                                               ops_cpu.json
  load  reading FASTA on one core; what a run waits for its data                             load.json
  run   L0_sanity as `make run` trains it: time, memory, held-out loss beside count models   run.json
  build a cold `make build` without a GPU's kernels, in a clone of its own                   build.json

Only one process works at a time. A product of matrices timed in between says how steady the machine was: where it varied by
more than a tenth, times are marked unreliable. --quick tries everything in small and writes to build/bench/quick.
"""

import argparse
import datetime
import json
import os
import pathlib
import pty
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODES = [("loop", "fp32"), ("grouped_linear", "fp32"), ("fused_grouped_mlp", "fp32"), ("fused_grouped_mlp", "bf16")]
EXPERTS = ["eager", "grouped_mm"]
STEADY = 0.10  # of the product's median: between the slowest and the fastest
PAUSE = 0.2  # seconds between two processes: threads of the one may still spin
PRODUCT = "fp32 product 4096 x 1024 x 1024, the faster of ours and torch's"


class Server:
    """A process that answers lines of its standard input with lines of JSON."""

    def __init__(self, label, command, environment=None):
        self.label = label
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
        )
        self.hello = self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.errors.seek(0)
            raise SystemExit(f"bench: {self.label} ended with {self.process.returncode}:\n{self.errors.read()[-2000:]}")
        return json.loads(line)

    def ask(self, line):
        time.sleep(PAUSE)
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.read()["seconds"]

    def quit(self):
        """GiB that the process held at most."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        self.process.stdin.write("quit\n")
        self.process.stdin.close()
        self.process.wait()
        return int(re.search(r"VmHWM:\s+(\d+)", status).group(1)) / 2**20


def rounded(value):
    return float(f"{value:.6g}")


def side(samples, scale=1.0, **more):
    values = [rounded(scale * s) for s in samples]
    result = {"median": rounded(statistics.median(values)), "min": min(values), "max": max(values), "n": len(values)}
    return {**result, **more, "samples": values}


def spread(samples):
    return (max(samples) - min(samples)) / statistics.median(samples)


class Bench:
    def __init__(self, options):
        self.options = options
        self.program = options.build / "bin/moebius"
        self.bench = options.build / "bin/moebius_bench"
        self.work = ROOT / "build/bench/work"
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        self.product = Server("sgemm", [self.bench, "step", "--rows=1", "--length=2", f"--threads={options.threads}"])
        machine = self.product.hello["machine"]
        self.common = {
            "device": machine["device"] + ", " + machine["instructions"],
            "toolkit": machine["compiler"],
            "threads": machine["threads"],
            "commit": machine["commit"],
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
            "boot": pathlib.Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip(),
        }

    def case(self, name, unit, better, ours, **more):
        return {"case": name, "unit": unit, "better": better, "ours": ours, **more, **self.common}

    def products(self, count=5):
        return [self.product.ask("sgemm") for _ in range(count)]

    def write(self, topic, cases):
        path = self.options.out / f"{topic}.json"
        path.write_text("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n", encoding="utf-8")
        unreliable = sum(bool(c.get("unreliable")) for c in cases)
        print(f"bench: {path}: {len(cases)} cases" + (f", {unreliable} unreliable" if unreliable else ""), flush=True)

    # --- step

    def step_servers(self):
        rows, length = (2, 128) if self.options.quick else (8, 1024)
        tokens = self.work / "tokens.i32"
        letters = random.Random(42).choices(b"ACGT", k=rows * length)
        tokens.write_bytes(b"".join(letter.to_bytes(4, "little") for letter in letters))
        shape = [f"--rows={rows}", f"--length={length}", f"--tokens={tokens}", f"--threads={self.options.threads}"]
        ours = {(m, d): Server(f"{m} {d}", [self.bench, "step", f"--mode={m}", f"--dtype={d}", *shape]) for m, d in MODES}
        baseline = [self.options.python, ROOT / "bench/baselines/hf_l0_step.py"]
        # Offline: the folder has all that is needed.
        environment = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
        words = [word.replace("=", " ").split(" ", 1) for word in shape]
        flat = [part for word in words for part in word]
        theirs = {e: Server(f"hf_{e}", [*baseline, "--experts", e, *flat], environment) for e in EXPERTS}
        return ours, theirs, {"tokens": [rows, length], "model": "l0_sanity"}

    def step(self):
        ours, theirs, shapes = self.step_servers()
        sides = {**ours, **theirs}
        for warm_up in range(1 if self.options.quick else 3):
            for server in sides.values():
                server.ask("step")
        first_ours, first_theirs = next(iter(ours.values())), next(iter(theirs.values()))
        seconds = {key: [] for key in sides}
        products = {"ours": [], "torch": []}
        for number in range(self.options.rounds):
            products["ours"].append(first_ours.ask("sgemm"))
            products["torch"].append(first_theirs.ask("sgemm"))
            # Another one begins each time, so that none always follows the same.
            order = list(sides)[number % len(sides) :] + list(sides)[: number % len(sides)]
            for key in order:
                seconds[key].append(sides[key].ask("step"))
            shown = ", ".join(f"{sides[k].label} {v[-1]:.3f}" for k, v in seconds.items())
            print(f"bench: round {number + 1}: {shown}, sgemm {products['ours'][-1]:.4f} {products['torch'][-1]:.4f} s", flush=True)
        memory = {key: rounded(server.quit()) for key, server in sides.items()}
        self.write("cpu_step", self.step_cases(ours, theirs, seconds, products, memory, shapes))

    def step_cases(self, ours, theirs, seconds, products, memory, shapes):
        faster = [min(pair) for pair in zip(products["ours"], products["torch"])]
        varied = max(spread(samples) for samples in products.values())
        cases = []
        for (mode, dtype), server in ours.items():
            mine = seconds[(mode, dtype)]
            hello = server.hello
            # The model's own products, the same number for every side, not what one of them makes of it.
            shares = [hello["model_flops"] / s / (hello["sgemm_flops"] / p) for s, p in zip(mine, faster)]
            others, ratio, held = {}, {}, {"ours": memory[(mode, dtype)]}
            for experts, other in theirs.items() if dtype == "fp32" else ():
                name = f"hf_{experts}"
                others[name] = side(seconds[experts], 1e3, version=other.hello["version"])
                ratio[name] = rounded(statistics.median(t / s for t, s in zip(seconds[experts], mine)))
                held[name] = memory[experts]
            limit = {
                "name": PRODUCT,
                "value": rounded(hello["sgemm_flops"] / statistics.median(faster) / 1e9),
                "unit": "GFLOP/s",
                "share": rounded(statistics.median(shares)),
            }
            more = {"others": others, "ratio": ratio, "limit": limit, "memory_gib": held, "shapes": shapes, "routing": "learned"}
            more["ratio_of"] = "median over rounds of their time to ours"
            more["flops"] = {"model": hello["model_flops"], "step": hello["flops"]}
            more["sgemm_ms"] = {name: side(samples, 1e3) for name, samples in products.items()}
            more["sgemm_spread"] = rounded(varied)
            more["unreliable"] = varied > STEADY
            ours_side = side(mine, 1e3, variant=mode)
            cases.append(self.case(f"train_step.l0_cpu.{dtype}", "ms", "lower", ours_side, **more))
        return cases

    # --- operations

    def ops(self):
        quick = ["gemm/forward", "--runs=2"] if self.options.quick else ["--runs=11", "--milliseconds=400"]
        command = [self.bench, "ops", f"--threads={self.options.threads}", *quick]
        output = subprocess.run([str(w) for w in command], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        lines = [json.loads(line) for line in output.splitlines()][1:]
        products = [line["sgemm_seconds"] for line in lines]
        product = self.product.hello["sgemm_flops"] / statistics.median(products) / 1e9
        self.write("ops_cpu", [self.op_case(line, product, spread(products)) for line in lines])

    def op_case(self, line, product, varied):
        """Time, and what bounds it: arithmetic above 16 operations a byte, memory below."""
        median = statistics.median(line["seconds"])
        more = {"dtype": line["dtype"], "shapes": line["shapes"], "work": {"flops": line["flops"], "bytes": line["bytes"]}}
        more["sgemm_spread"], more["unreliable"] = rounded(varied), varied > STEADY
        more["rate"] = {"GFLOP/s": rounded(line["flops"] / median / 1e9), "GB/s": rounded(line["bytes"] / median / 1e9)}
        if line["flops"] > 16 * line["bytes"]:
            share = rounded(more["rate"]["GFLOP/s"] / product)
            name = "our fp32 product 4096 x 1024 x 1024"
            more["limit"] = {"name": name, "value": rounded(product), "unit": "GFLOP/s", "share": share}
        ours = side(line["seconds"], 1e3, variant=line["variant"], checked=line["checked"])
        return self.case(line["case"].replace("/", "."), "ms", "lower", ours, **more)

    # --- data

    def make_fasta(self, megabytes):
        """A genome of random bases in lines of 80: (plain file, its bytes)."""
        path = self.work / "genome.fa"
        table = bytes(b"ACGT"[i & 3] for i in range(256))
        source = random.Random(42)
        with path.open("wb") as out:
            for number in range(max(1, megabytes // 10)):
                bases = source.randbytes(10_000_000).translate(table)
                out.write(b">record%d\n" % number)
                out.write(b"\n".join(bases[i : i + 80] for i in range(0, len(bases), 80)) + b"\n")
        return path, path.stat().st_size

    def load(self):
        before = self.products()
        cases = []
        for kind, megabytes in (("plain", 20 if self.options.quick else 200), ("gzip", 10 if self.options.quick else 50)):
            path, size = self.make_fasta(megabytes)
            if kind == "gzip":
                subprocess.run(["gzip", "-f", path], check=True)
                path = path.with_name(path.name + ".gz")
            core = min(os.sched_getaffinity(0))
            command = ["taskset", "-c", core, self.bench, "fasta", path, f"--runs={2 if self.options.quick else 7}"]
            output = subprocess.run([str(w) for w in command], cwd=ROOT, check=True, capture_output=True, text=True).stdout
            line = json.loads(output.splitlines()[1])
            for step in ("parse", "read"):
                rates = [size / 1e6 / s for s in line[f"{step}_seconds"]]
                shapes = {"text_bytes": size, "file_bytes": path.stat().st_size, "bases_a_line": 80}
                more = {"shapes": shapes, "cores": 1}
                ours = side(rates, variant={"parse": "parsed only", "read": "parsed and held as tokens"}[step])
                cases.append(self.case(f"load.fasta.{kind}.{step}", "MB/s", "higher", ours, **more))
                cases[-1]["threads"] = 1
            path.unlink()
        self.finish(cases, before)
        run = self.train(20)
        share = [100 * line["data_wait_seconds"] / (line["step_time"] * line["steps"]) for line in run["windows"]]
        total = sum(line["step_time"] * line["steps"] for line in run["windows"])
        ours = side([100 * sum(line["data_wait_seconds"] for line in run["windows"]) / total], variant="all 20 steps")
        cases.append(self.case("load.wait_share.l0_cpu", "% of step time", "lower", ours, windows=[rounded(s) for s in share]))
        self.write("load", cases)

    def finish(self, cases, before):
        products = before + self.products()
        for case in cases:
            case["sgemm_spread"] = rounded(spread(products))
            case["unreliable"] = spread(products) > STEADY

    # --- a run

    def train(self, steps=None):
        """Trains L0_sanity on a terminal of its own, as a user sees it."""
        folder = self.work / "run"
        shutil.rmtree(folder, ignore_errors=True)
        command = [self.program, "train", "--config-name", "L0_sanity", f"logger.run_dir={folder}"]
        command += [f"num_threads={self.options.threads}"]
        # The program finds the shipped configurations from where it lies, if that is inside the tree.
        command += [] if self.program.is_relative_to(ROOT) else ["--config-path", ROOT / "configs"]
        command += [f"num_train_steps={steps}"] if steps else []
        command += ["dataset.max_seq_length=256", "dataset.micro_batch_size=2"] if self.options.quick else []
        terminal, inner = pty.openpty()
        start = time.perf_counter()
        process = subprocess.Popen([str(w) for w in command], stdin=subprocess.DEVNULL, stdout=inner, stderr=inner, cwd=ROOT)
        os.close(inner)
        text, first = b"", None
        while True:
            try:
                piece = os.read(terminal, 65536)
            except OSError:  # the other end is closed
                break
            text += piece
            if first is None and re.search(rb"step +1/\d+ ", text):
                first = time.perf_counter() - start
        os.close(terminal)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - start
        if process.returncode != 0 or first is None:
            raise SystemExit(f"bench: {' '.join(str(w) for w in command)} ended with {process.returncode}:\n{text.decode()[-2000:]}")
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        windows, last = [], 0
        for line in lines:
            if "step_time" in line:
                windows.append({**line, "steps": line["step"] - last})
                last = line["step"]
        validation = [line for line in lines if line.get("final")]
        more = {"windows": windows, "validation": validation[-1], "steps": last}
        return {"first": first, "seconds": seconds, "gib": usage.ru_maxrss / 2**20, **more}

    def run(self):
        before = self.products()
        run = self.train(20 if self.options.quick else None)
        v = run["validation"]
        variant = f"{run['steps']} steps"
        name = "run.l0_sanity"
        timed = [
            self.case(f"{name}.first_step", "s", "lower", side([run["first"]], variant="start to the end of step 1")),
            self.case(f"{name}.seconds", "s", "lower", side([run["seconds"]], variant=variant)),
        ]
        self.finish(timed, before)
        others = {f"count_model_order{n}": side([v[f"count_model_order{n}"]], version="same training bases") for n in (1, 3)}
        ratio = {key: rounded(other["median"] / v["val_loss"]) for key, other in others.items()}
        loss = self.case(f"{name}.held_out_loss", "nats", "lower", side([v["val_loss"]], variant=variant), others=others, ratio=ratio)
        loss["shapes"] = {"labels": v["val_labels"]}
        memory = self.case(f"{name}.peak_memory", "GiB", "lower", side([run["gib"]], variant=variant))
        self.write("run", [*timed, memory, loss])

    # --- a build

    def build(self):
        if self.options.quick:
            print("bench: build: nothing in small", flush=True)
            return
        clone = self.work / "clone"
        subprocess.run(["git", "clone", "-q", "--no-hardlinks", ROOT, clone], check=True)
        before = self.products()
        # What `make bench` itself was called with must not reach this make.
        environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")}
        # An empty cache that nothing is read from or written to, also where CCACHE_DISABLE were not obeyed.
        environment |= {"CCACHE_DISABLE": "1", "CCACHE_DIR": str(self.work / "ccache"), "CUDA": "0"}
        command = [str(w) for w in ("make", "-C", clone, "build", f"JOBS={self.options.threads}", "CUDA=0")]
        start = time.perf_counter()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - start
        if done.returncode != 0:
            raise SystemExit(f"bench: make build ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
        if not (clone / "build/bin/moebius").is_file():
            raise SystemExit("bench: make build made no build/bin/moebius")
        compiled = len(list((clone / "build/cpu").rglob("*.o")))
        ours = side([seconds], variant="no ccache, packages installed before")
        case = self.case("build.cpu.cold", "s", "lower", ours, shapes={"files_compiled": compiled}, jobs=self.options.threads)
        self.finish([case], before)
        self.write("build", [case])


def check_clean(bench):
    """Figures name a commit: the tree must be that commit's."""
    written = [":!bench/results", ":!docs/performance.md", ":!README.md"]
    git = lambda *words: subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", *written)
    if changed:
        raise SystemExit(f"bench: figures name a commit, and these files are not as committed:\n{changed}\n(--quick measures all the same)")
    if git("rev-parse", "HEAD") != bench.common["commit"]:
        raise SystemExit(f"bench: {bench.bench} was built from {bench.common['commit']}, which is not HEAD: build it again")


def arguments():
    topics = ["step", "ops", "load", "run", "build"]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(topics), help="of " + ", ".join(topics))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/cpu")
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    options.only = options.only.split(",")
    unknown = [topic for topic in options.only if topic not in topics]
    if unknown:
        parser.error(f"--only: {unknown[0]} is not one of {', '.join(topics)}")
    options.build = (ROOT / options.build).resolve()
    options.rounds = options.rounds or (2 if options.quick else 12)
    options.out = options.out or ROOT / ("build/bench/quick" if options.quick else "bench/results")
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def main():
    options = arguments()
    bench = Bench(options)
    if not options.quick:
        check_clean(bench)
    busy = os.getloadavg()[0]
    if busy > 0.5:
        print(f"bench: the machine is not idle (load {busy:.1f}): times will be unreliable", flush=True)
    for topic in options.only:
        start = time.perf_counter()
        getattr(bench, topic)()
        print(f"bench: {topic}: {time.perf_counter() - start:.0f} s", flush=True)
    bench.product.quit()
    shutil.rmtree(bench.work)


if __name__ == "__main__":
    main()
