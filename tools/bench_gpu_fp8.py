"""Products and quantizers of eight-bit operands, of tools/bench_gpu.py, beside a dense product by cuBLAS: gpu_fp8.json."""

import tempfile

import bench_gpu_parts
from bench_gpu_bytes import Bytes
from bench_gpu_common import HEAT, Failed, clocks_of, json_of, limit_of, note, rounded, side
from bench_gpu_gemm import MLPS, Products

# What a case's kind of scales is called as a recipe.
RECIPES = {"block128": "float8_block", "tensor": "float8_current"}


# Products whose MXFP8 rows stand beside our own bf16 ones: the part of the cases' names that holds splits and sizes.
WIDE = ("8_experts.28672x4096", "64_experts.2048x2048")
WIDE_KINDS = {"forward": "bf16", "dgrad": "bf16", "wgrad": "f32"}


# The forward whose gate-up product makes the activation's codes, or what they are made of, by the scales' kind.
FUSED = {"float8_block": "block128", "float8_current": "tensor", "delayed": "tensor"}


class Float8:
    def __init__(self, bench):
        self.bench = bench
        self.options = bench.options
        self.products = Products(bench)

    def theirs(self):
        """{kind: (line, clocks and watts)} of dense products with one scale a tensor, as cuBLAS sums without fast accumulation."""
        result = {}
        try:
            for came, line in self.bench.ask_torch(f"fp8 --samples {self.bench.options.samples}"):
                result[line["case"].split(".")[2]] = (line, self.bench.meter.between(came - 0.5, came))
        except Failed as error:
            self.bench.fail("dense eight-bit products", error)
        return result

    def run(self):
        if not self.products.find_warm():
            return
        found = {}
        for part in ("grouped_gemm_quantized/", "quantize/", "grouped_mlp_quantized"):
            try:
                found.update(self.products.our_products(part))
            except Failed as error:
                self.bench.fail(f"ours, {part}", error)
        wide = self.wide()
        theirs = self.theirs()
        note(f"fp8: ours {len(found)}, dense {len(theirs)} cases ({self.bench.seconds()})")
        moving = Bytes(self.bench, "fp8")
        try:
            copy = moving.copy()
        except Failed as error:
            self.bench.fail("copy", error)
            copy = None
        for name, (line, at) in sorted(found.items()):
            runs = line.get("samples") or [line["median_seconds"]]
            if name.startswith("grouped_mlp_quantized"):
                continue
            if "quantize/" in name:
                moving.add(name.replace("/", "."), line["bytes"], runs, line["variant"], copy, at)
            else:
                self.product(name, line, runs, at, theirs, wide)
        self.mlps(found)
        self.fused_products()
        self.bench.write("fp8")

    def wide(self):
        """{(kind, splits and sizes): (line, clocks and watts)} of our bf16 products."""
        result = {}
        for sizes in WIDE:
            for kind, out in WIDE_KINDS.items():
                name = f"grouped_gemm/{kind}.bf16_{out}.{sizes}"
                try:
                    result[kind, sizes] = self.products.our_products(name)[name]
                except (Failed, KeyError) as error:
                    self.bench.fail(f"ours, {name}", error)
        return result

    def gate_up_samples(self, name, variant):
        """ms of the gate-up product in each forward of a benchmark's case by that variant (None: the chosen one), by the tracer; and the variant."""
        runs = max(10, self.options.samples)
        with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as file:
            command = [self.options.bin / "moebius_kernel_bench", name, "--runs", runs, "--warm", HEAT, "--check", "0", "--json", file.name]
            command += ["--variant", variant] if variant else []
            events = bench_gpu_parts.traced(self.bench, "moebius_kernel_bench", command)
            line = next(filter(None, map(json_of, file.read().splitlines())), None)
        if line is None or line["case"] != name:
            raise Failed(f"no result of {name}")
        products = [end - start for start, end, kernel in events if "grouped_product" in kernel]
        # Gate-up and down take turns.
        return [ns / 1e6 for ns in products[-2 * runs :: 2]], line["variant"]

    def fused_products(self):
        """The gate-up product that also makes the activation's codes, or what they are made of, beside the product alone."""
        for case, sizes in MLPS.items():
            for recipe, scale in FUSED.items():
                name = f"grouped_mlp_quantized/{scale}.f8e4m3.{sizes}{'.given' if recipe == 'delayed' else ''}.weights_kept"
                try:
                    fused, variant = self.gate_up_samples(name, None)
                    alone, _ = self.gate_up_samples(name, "cuda_composed")
                except Failed as error:
                    self.bench.fail(f"the fused gate-up product of {name}", error)
                    continue
                ours, other = side(fused, variant=variant), side(alone, version="our product alone, by the tracer too")
                more = {"others": {"alone": other}, "ratio": {"alone": rounded(other["median"] / ours["median"])}}
                self.bench.cases["fp8"].append(self.bench.case(f"gate_up.{case}.{recipe}", "ms", "lower", ours, {}, **more))

    def mlps(self, found):
        """The experts' MLP with all quantization of x, dy and weights inside; and with the weights' codes kept."""
        for case, sizes in MLPS.items():
            for scale, recipe in RECIPES.items():
                for kept in ("", ".weights_kept"):
                    name = f"{scale}.f8e4m3.{sizes}{kept}"
                    pair = [found.get(f"grouped_mlp_quantized{way}/{name}") for way in ("", "_backward")]
                    if None not in pair:
                        self.bench.cases["fp8"].append(self.products.mlp_case(case, recipe + kept, sizes, pair))

    def product(self, name, line, runs, at, theirs, wide):
        rates = side([line["flops"] / s / 1e12 for s in runs], variant=line["variant"])
        more, dense = {"milliseconds": rounded(1e3 * line["median_seconds"])}, theirs.get("dense")
        words = name.split("/")[1].split(".")
        if words[1] == "mx32" and (same := wide.get((words[0], ".".join(words[3:])))):
            other = same[0]
            samples = other.get("samples") or [other["median_seconds"]]
            bf16 = side([other["flops"] / s / 1e12 for s in samples], variant=other["variant"], **(same[1] or {}))
            more.update(others={"bf16": bf16}, ratio={"bf16": rounded(rates["median"] / bf16["median"])})
        if dense and "8_experts" in name and "28672" in name:
            more["limit"] = limit_of(dense[0]["median"], rates["median"], "dense eight-bit cuBLAS product of the same FLOPs, one scale a tensor")
            more["limit"].update(dense[1] or clocks_of(dense[0]))
        self.bench.cases["fp8"].append(self.bench.case(name.replace("/", "."), "TFLOP/s", "higher", rates, at, **more))
