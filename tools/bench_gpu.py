#!/usr/bin/env python3
"""Measures Moebius on a GPU beside torch and Hugging Face and writes bench/results/gpu_*.json: run by tools/bench.sh --gpu.

    tools/bench_gpu.py [--only start,step,gemm,bytes,fp8] [--bin DIR] [--python FILE] [--out DIR] [--samples N] [--quick] [--limit SECONDS] [--theirs NAMES]

  start L0_sanity from the start of the process to the end of its first step                               gpu_start.json
  step  training steps of two layers of Mixtral-8x7B and four fine-grained ones, beside Hugging Face's    gpu_step.json
  gemm  grouped products beside torch's, the experts' MLP                                                  gpu_gemm.json
  fp8   products and quantizers of eight-bit operands                                                      gpu_fp8.json
  bytes what only moves bytes, beside a copy: router, permutation, AdamW, norms                            gpu_bytes.json

Both sides take turns on one card (CUDA_VISIBLE_DEVICES chooses it); torch's process stays, imported and idle, while ours
runs. A part that fails is left out and its reason printed. --quick tries everything in small and writes to build/bench/quick.
"""

import argparse
import datetime
import functools
import json
import os
import pathlib
import sys
import time

from bench_gpu_bytes import Bytes
from bench_gpu_common import HEAT, ROOT, Failed, Meter, Process, card_of_machine, head_commit, json_of, limit_of, note
from bench_gpu_fp8 import Float8
from bench_gpu_gemm import Products
from bench_gpu_start import Start
from bench_gpu_step import Steps

# topic: its cases go to gpu_TOPIC.json
TOPICS = {"start": Start, "step": Steps, "gemm": Products, "bytes": Bytes, "fp8": Float8}


class Bench:
    def __init__(self, options):
        self.options = options
        self.begin = time.monotonic()
        self.deadline = self.begin + options.limit
        self.index = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
        self.meter = None
        self.builds = {}  # (commit, dirty): None, of our programs
        self.toolkit = ""
        self.torch = None
        self.torch_ready = False
        self.torch_failed = ""  # why it is not asked any more
        self.dense = {}  # kind of product: cuBLAS's TFLOP/s at 8x7b's shapes
        self.cases = {topic: [] for topic in TOPICS}
        self.failures = []

    def fail(self, what, error):
        self.failures.append(f"{what}: {error}")
        note(f"left out: {self.failures[-1]}")

    # Nothing may ask the driver for the card before the first process whose start is timed, so this and `meter` come later.
    @functools.cached_property
    def card(self):
        return card_of_machine(self.index)

    # --- both sides

    def start_torch(self):
        try:
            command = [self.options.python, ROOT / "bench/baselines/torch_step.py", "serve"]
            self.torch = Process("torch", command, {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"})
        except Failed as error:
            self.torch_failed = str(error)

    def ask_torch(self, words):
        """[(time, line)] of torch_step.py for that command line."""
        if self.torch_failed:
            raise Failed(self.torch_failed)
        answers = []
        try:
            self.torch.say(words + f" --no-meter --heat {HEAT}")
            while True:
                item = self.torch.next(self.deadline)
                if item is None:
                    raise Failed("torch ended early")
                line = json_of(item[1]) or {}
                self.torch_ready = self.torch_ready or "ready" in line
                if "done" in line:
                    return answers
                if "error" in line:
                    self.fail(f"{line.get('side', 'torch')} in {line.get('case', words)}", line["error"])
                elif "samples" in line:
                    answers.append((item[0], line))
        except Failed as error:
            # One that never came up, or has no time left, is not tried again.
            if self.torch_ready and time.monotonic() < self.deadline:
                self.torch_ready = False
                self.start_torch()
            else:
                self.torch_failed = str(error)
            if not answers:
                raise
            self.fail(words, error)  # what came before counts
            return answers

    def built(self, line):
        self.builds[(line.get("commit", ""), bool(line.get("dirty")))] = None
        self.toolkit = line.get("toolkit") or self.toolkit

    def case(self, name, unit, better, ours, at, **more):
        """`at`: clocks and watts during our samples."""
        return {"case": name, "unit": unit, "better": better, "ours": ours, **more, **at}

    def add_limits(self):
        """Steps and MLPs beside the dense product of this run."""
        if "fwd" not in self.dense:
            return
        for case in self.cases["step"] + self.cases["gemm"]:
            rate = case.get("model_tflops") or case.get("tflops")
            if rate:
                name = "dense bf16 cuBLAS 32768 x 28672 x 4096" + (", by the model's FLOPs" if "model_tflops" in case else "")
                case["limit"] = limit_of(self.dense["fwd"], rate, name)
        for topic, cases in self.cases.items():
            if cases:
                self.write(topic, silent=True)

    # --- results

    def seconds(self):
        return f"{time.monotonic() - self.begin:.0f} s"

    def common(self):
        commits = list(self.builds) or [("", False)]
        commit = self.options.commit or commits[0][0] or head_commit() or "unknown"
        more = {"dirty": True} if any(dirty for _, dirty in commits) else {}
        date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
        return {**self.card, "toolkit": self.toolkit, "threads": len(os.sched_getaffinity(0)), "commit": commit, **more, "date": date}

    def write(self, topic, silent=False):
        cases = self.cases[topic]
        if not cases:
            return
        path = self.options.out / f"gpu_{topic}.json"
        text = "[\n" + ",\n".join(json.dumps({**c, **self.common()}) for c in cases) + "\n]\n"
        path.with_suffix(".part").write_text(text, encoding="utf-8")
        os.replace(path.with_suffix(".part"), path)
        if not silent:
            note(f"{path}: {len(cases)} cases so far")

    def table(self):
        head = ("case", "unit", "ours", "min", "max", "other", "theirs", "ratio", "of limit", "MHz", "W", "GiB")
        rows = [head]
        for case in sum(self.cases.values(), []):
            ours, limit = case["ours"], case.get("limit")
            clocks = case.get("clocks_mhz", {}).get("sm", "")
            gib = case.get("memory_gib", {}).get("ours")
            tail = (f"{100 * limit['share']:.0f}%" if limit else "", f"{clocks}", f"{case.get('watts', '')}", f"{gib:.1f}" if gib else "")
            name = case["case"] + ("" if len(self.options.modes) == 1 or case["unit"] != "ms" else f" {ours['variant']}")
            first = (name, case["unit"], *(f"{ours[key]:.4g}" for key in ("median", "min", "max")))
            others = list(case.get("others", {}).items()) or [(None, None)]
            for number, (other, theirs) in enumerate(others):
                figures = (other, f"{theirs['median']:.4g}", f"{case['ratio'][other]:.3f}") if other else ("–", "", "")
                rows.append((*first, *figures, *tail) if number == 0 else ("", "", "", "", "", *figures, "", "", "", ""))
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        for row in rows:
            cells = [c.ljust(w) if i in (0, 1, 5) else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))]
            print("  ".join(cells).rstrip())

    def run(self):
        try:
            for topic in self.options.only:
                if topic != "start" and self.meter is None:
                    self.meter = Meter(self.index)
                    self.start_torch()
                try:
                    TOPICS[topic](self).run()
                except Exception as error:  # one topic's trouble is not the other's
                    self.fail(topic, f"{type(error).__name__}: {error}")
        finally:
            if self.meter:
                self.meter.end()
            if self.torch:
                self.torch.end()
        self.add_limits()
        self.table()
        head = head_commit()
        for commit, dirty in self.builds:
            if dirty or (head and commit and commit != head):
                print(f"NOT OF HEAD: built from {commit}{', with changes' if dirty else ''}; HEAD is {head or 'not known here'}")
        for failure in self.failures:
            print(f"LEFT OUT {failure}")
        print(f"bench: {self.seconds()}")
        return 0 if any(self.cases.values()) else 1


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(TOPICS), help="of " + ", ".join(TOPICS))
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/cuda/bin", help="where moebius_bench and moebius_kernel_bench lie")
    parser.add_argument("--python", default=sys.executable, help="with torch and transformers")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--samples", type=int, default=12)
    parser.add_argument("--modes", default="fused_grouped_mlp", help="of expert_ffn_mode, with commas")
    parser.add_argument("--theirs", default="grouped_mm,eager", help="of Hugging Face's experts in step, with commas")
    parser.add_argument("--genome", type=pathlib.Path, default=ROOT / "build/data/NC_008253.fna.gz", help="for start")
    parser.add_argument("--commit", default="", help="of the programs, where they do not say")
    parser.add_argument("--limit", type=float, default=480, help="seconds; what has not come by then is left out")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    options.only = options.only.split(",")
    unknown = [topic for topic in options.only if topic not in TOPICS]
    if unknown:
        parser.error(f"--only: {unknown[0]} is not one of {', '.join(TOPICS)}")
    options.modes, options.theirs = options.modes.split(","), options.theirs.split(",")
    options.bin, options.genome = options.bin.resolve(), options.genome.resolve()
    if options.quick:
        options.samples = 3
    elif options.samples < 10:
        parser.error("--samples: at least 10")
    options.out = options.out or ROOT / ("build/bench/quick" if options.quick else "bench/results")
    options.out.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    sys.exit(Bench(arguments()).run())
