"""Operations that only move bytes, of tools/bench_gpu.py, beside a copy on the same card: gpu_bytes.json.

Their rate counts each operand once; what an operation reads twice or writes beside its results makes it look slower."""

import statistics

from bench_gpu_common import Failed, note, rounded, side
from bench_gpu_gemm import Products

# part of our cases' names, and what comes of its cases. `route` is the sum over a token's way to the experts and back.
PARTS = ["router", "permutation", "permute_scalars", "gather_rows", "combine_rows", "adamw/", "rms_norm", "scaled_glu", "rope"]
ROUTES = {"8x7b": ("16384x8k2", "16384k2e8.4096", "16384k2e8"), "fine_64e": ("16384x64k8", "16384k8e64.2048", "16384k8e64")}


class Bytes:
    def __init__(self, bench, topic="bytes"):
        self.bench = bench
        self.topic = topic
        self.products = Products(bench)

    def copy(self):
        """TB/s of torch's copy of 4 GiB, reading and writing counted."""
        answers = self.bench.ask_torch(f"copy --samples {self.bench.options.samples}")
        for _, line in answers:
            return line
        raise Failed("torch gave no copy")

    def run(self):
        if not self.products.find_warm():
            return
        try:
            copy = self.copy()
        except Failed as error:
            self.bench.fail("copy", error)
            copy = None
        found = {}
        for part in PARTS:
            try:
                found.update(self.products.our_products(part))
            except Failed as error:
                self.bench.fail(f"ours, {part}", error)
        note(f"bytes: {len(found)} cases ({self.bench.seconds()})")
        for case, (line, at) in sorted(found.items()):
            runs = line.get("samples") or [line["median_seconds"]]
            self.add(case.replace("/", ".").replace("..", "."), line["bytes"], runs, line["variant"], copy, at)
        for case, ends in ROUTES.items():
            self.route(case, ends, found, copy)
        self.bench.write("bytes")

    def add(self, name, moved, runs, variant, copy, at):
        rates = side([moved / s / 1e12 for s in runs], variant=variant)
        more = {"microseconds": rounded(1e6 * statistics.median(runs)), "bytes": moved}
        if copy:
            share = rounded(rates["median"] / copy["median"])
            more["limit"] = {"name": "torch's copy of 4 GiB", "value": copy["median"], "unit": "TB/s", "share": share}
        self.bench.cases[self.topic].append(self.bench.case(name, "TB/s", "higher", rates, at, **more))

    def route(self, case, ends, found, copy):
        """Router, permutation, gather and combine: each once, their bytes over their time."""
        kinds = ("router/", "permutation/", "gather_rows/", "combine_rows/")
        lines = [line for name, (line, _) in found.items() if name.startswith(kinds) and name.endswith(ends)]
        if len(lines) != len(kinds):
            self.bench.fail(f"route.{case}", f"found {len(lines)} of its {len(kinds)} operations")
            return
        runs = [sum(samples) for samples in zip(*(line["samples"] for line in lines))]
        variant = " + ".join(sorted({line["variant"] for line in lines}))
        self.add(f"route.{case}.bf16", sum(line["bytes"] for line in lines), runs, variant, copy, {})
