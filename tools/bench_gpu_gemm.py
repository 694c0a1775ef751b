"""Products of tools/bench_gpu.py: grouped ones beside torch's, the experts' MLP, attention's backward beside cuDNN's ordered one:
gpu_gemm.json."""

import subprocess
import tempfile

from bench_gpu_common import HEAT, Failed, Process, clocks_of, json_of, limit_of, note, rounded, side

# case of torch_step.py: the part of our cases' names that holds splits and sizes.
PRODUCTS = {"8x7b": ("8_experts", "28672x4096"), "e128": ("128_experts", "1536x2048")}
KINDS = {"fwd": "forward", "dgrad": "dgrad", "wgrad": "wgrad"}
ATTENTION = {"8x7b": "2x8192x32x128", "fine_64e": "2x8192x32x64"}
MLPS = {"8x7b": "bf16.8_experts.4096x14336", "fine_64e": "bf16.64_experts.2048x1024"}


class Products:
    def __init__(self, bench):
        self.bench = bench
        self.options = bench.options
        self.warms = False  # the kernel benchmark knows --warm

    def our_products(self, part, variant=None):
        """{case: (line, clocks and watts)} of moebius_kernel_bench for the cases with that in their name, by the variant chosen or that one."""
        program = self.options.bin / "moebius_kernel_bench"
        with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as file:
            command = [program, part, "--runs", max(3 if self.options.quick else 20, self.options.samples), "--json", file.name]
            command += ["--warm", HEAT] if self.warms else []
            command += ["--variant", variant] if variant else []
            running = Process("moebius_kernel_bench", command)
            came, failed = {}, None
            try:
                while item := running.next(self.bench.deadline):
                    came[item[1].split(" ", 1)[0]] = item[0]
                    if " skipped: " in item[1]:
                        self.bench.fail(item[1].split(" ", 1)[0], item[1].split(" skipped: ", 1)[1])
            except Failed as error:
                failed = error
            lines = [line for line in map(json_of, file.read().splitlines()) if line]
        if failed and not lines:
            raise failed
        if failed:
            self.bench.fail(f"the rest of *{part}*", failed)
        result = {}
        for line in lines:
            self.bench.built(line)
            runs = line.get("samples") or [line["median_seconds"]] * line["runs"]
            end = came.get(line["case"])
            window = (end - sum(runs) - (HEAT if self.warms else 0), end) if end else (0, 0)
            result[line["case"]] = (line, self.bench.meter.between(*window))
        return result

    def their_products(self, case):
        """{(kind, routing): {side: (line, clocks and watts)}}"""
        routing = "balanced" if self.options.quick else "balanced,skewed"
        result = {}
        words = f"gemm --case {case} --routing {routing} --samples {self.options.samples}"
        library = self.options.bin.parent / "lib" / "libmoebius_torch.so"
        words += f" --moebius {library}" if library.is_file() else ""
        for came, line in self.bench.ask_torch(words):
            key = (line["case"].split(".")[2], line["routing"])
            result.setdefault(key, {})[line["side"]] = (line, self.bench.meter.between(came - HEAT, came))
        return result

    def find_warm(self):
        """Whether there is a kernel benchmark, and what it knows."""
        try:
            words = [str(self.options.bin / "moebius_kernel_bench"), "--help"]
            self.warms = "--warm" in subprocess.run(words, capture_output=True, text=True, timeout=60).stdout
        except (OSError, subprocess.SubprocessError) as error:
            self.bench.fail("moebius_kernel_bench", error)
            return False
        return True

    def run(self):
        if not self.find_warm():
            return
        ours, mlps = {}, {}
        for part, found in (("grouped_gemm/", ours), ("grouped_mlp/", mlps), ("grouped_mlp_backward/", mlps)):
            try:
                found.update(self.our_products(part))
            except Failed as error:
                self.bench.fail(f"ours, {part}", error)
            note(f"{part}: ours: {len(found)} cases ({self.bench.seconds()})")
        for case, (experts, sizes) in PRODUCTS.items():
            theirs = {}
            try:
                theirs = self.their_products(case)
                note(f"products {case}: torch: {sum(map(len, theirs.values()))} cases ({self.bench.seconds()})")
            except Failed as error:
                self.bench.fail(f"torch in grouped_gemm.{case}", error)
            self.product_cases(case, experts, sizes, ours, theirs)
            self.bench.write("gemm")
            if self.options.quick:
                break
        self.mlp_cases(mlps)
        self.attention_cases()
        self.bench.write("gemm")

    def attention_cases(self):
        """The chosen variant, and cuDNN's backward whose results repeat."""
        part = "attention_backward/bf16.2x8192"
        found = {}
        for name, variant in (("ours", None), ("cudnn", "cudnn")):
            try:
                found[name] = self.our_products(part, variant)
            except Failed as error:
                self.bench.fail(f"{part} by {name}", error)
        for case, sizes in ATTENTION.items():
            lines = {name: lines.get(f"attention_backward/bf16.{sizes}") for name, lines in found.items()}
            if not lines.get("ours"):
                continue
            rates = {}
            for name, pair in lines.items():
                if pair:
                    runs = pair[0].get("samples") or [pair[0]["median_seconds"]]
                    version = {} if name == "ours" else {"version": "cuDNN's ordered backward, called by our program"}
                    rates[name] = side([pair[0]["flops"] / s / 1e12 for s in runs], variant=pair[0]["variant"], **version)
            others = {name: rate for name, rate in rates.items() if name != "ours"}
            ratio = {name: rounded(rates["ours"]["median"] / rate["median"]) for name, rate in others.items()}
            rows, length, heads, head_dim = 2, *(int(word) for word in sizes.split("x")[1:])
            shapes = {"sequences": rows, "length": length, "heads": heads, "kv_heads": 8, "head_dim": head_dim}
            more = {"others": others, "ratio": ratio, "shapes": shapes}
            self.bench.cases["gemm"].append(
                self.bench.case(f"attention_backward.{case}.bf16", "TFLOP/s", "higher", rates["ours"], lines["ours"][1], **more))

    def product_cases(self, case, experts, sizes, ours, theirs):
        rows = {"8x7b": 32768, "e128": 65536}[case]
        outer, inner = (int(word) for word in sizes.split("x"))
        shapes = {"experts": int(experts.split("_")[0]), "rows": rows, "in": inner, "out": outer}
        for routing in ("balanced", "skewed"):
            for kind, word in KINDS.items():
                dense = theirs.get((kind, "dense"), {}).get("cublas")
                torch = theirs.get((kind, routing), {}).get("torch")
                if dense and case == "8x7b":
                    self.bench.dense[kind] = dense[0]["median"]
                for out in ("bf16", "f32") if kind == "wgrad" else ("bf16",):
                    splits = experts + ("_skewed" if routing == "skewed" else "")
                    found = ours.get(f"grouped_gemm/{word}.bf16_{out}.{splits}.{sizes}")
                    if not found:
                        continue
                    line, at = found
                    runs = line.get("samples") or [line["median_seconds"]]
                    rates = side([line["flops"] / s / 1e12 for s in runs], variant=line["variant"])
                    others, ratio, more = {}, {}, {}
                    if torch and out == "bf16":
                        others["torch"] = side(torch[0]["samples"], version=torch[0]["version"], **(torch[1] or clocks_of(torch[0])))
                        ratio["torch"] = rounded(rates["median"] / others["torch"]["median"])
                    if dense:
                        more["limit"] = limit_of(dense[0]["median"], rates["median"], "dense bf16 cuBLAS product of the same FLOPs")
                        more["limit"].update(dense[1] or clocks_of(dense[0]))
                    name = f"grouped_gemm.{case}.{kind}.bf16" + (".fp32_out" if out == "f32" else "")
                    name += ".skewed" if routing == "skewed" else ""
                    shared = {"others": others, "shapes": shapes, "routing": routing}
                    self.bench.cases["gemm"].append(self.bench.case(name, "TFLOP/s", "higher", rates, at, ratio=ratio, **shared, **more))
                    inside = theirs.get((kind, routing), {}).get("moebius_in_torch")
                    if inside and out == "bf16":
                        # Called on torch's tensors in torch's process.
                        rates = side(inside[0]["samples"], variant=line["variant"])
                        ratio = {other: rounded(rates["median"] / one["median"]) for other, one in others.items()}
                        name = name.replace("grouped_gemm.", "grouped_gemm_in_torch.")
                        self.bench.cases["gemm"].append(self.bench.case(name, "TFLOP/s", "higher", rates, inside[1] or clocks_of(inside[0]), ratio=ratio, **shared))

    def mlp_cases(self, found):
        for case, sizes in MLPS.items():
            pair = [found.get(f"grouped_mlp{way}/{sizes}") for way in ("", "_backward")]
            if None not in pair:
                self.bench.cases["gemm"].append(self.mlp_case(case, "bf16", sizes, pair))

    def mlp_case(self, case, recipe, sizes, pair, **more):
        """Forward, backward and their sum, from the two lines of moebius_kernel_bench."""
        runs = [line.get("samples") or [line["median_seconds"]] for line, _ in pair]
        ways = {name: side(s, 1e3, variant=p[0]["variant"]) for name, s, p in zip(("forward", "backward"), runs, pair)}
        both = side([f + b for f, b in zip(*runs)], 1e3, variant=" + ".join(p[0]["variant"] for p in pair))
        flops = [line["flops"] for line, _ in pair]
        more = {**ways, "tflops": rounded(sum(flops) / both["median"] / 1e9), "flops": sum(flops), **more}
        for way, count in zip(ways, flops):
            more[way]["tflops"] = rounded(count / more[way]["median"] / 1e9)
        experts, rows = (8, 32768) if case == "8x7b" else (64, 131072)
        hidden, intermediate = (int(word) for word in sizes.split(".")[-1].split("x"))
        more["shapes"] = {"experts": experts, "rows": rows, "hidden": hidden, "intermediate": intermediate}
        more["routing"] = "balanced"
        return self.bench.case(f"mlp.{case}.{recipe}", "ms", "lower", both, pair[1][1], **more)
