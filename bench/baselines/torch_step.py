#!/usr/bin/env python3
"""The other side on a GPU: Hugging Face Mixtral's training step, and torch's matrix products, in bf16.

    torch_step.py step [--case 8x7b_2l,fine_64e_4l] [--experts eager,grouped_mm] [--accumulate 1,4] [--samples N]
    torch_step.py gemm [--routing balanced,skewed] [--samples N]
    torch_step.py copy
    torch_step.py fp8
    torch_step.py serve     says {"ready": true}, then runs such a line for each line of its input, and says {"done": true}

A line of JSON on standard output for each measurement (bench/results/README.md's words: median, min, max, n, samples);
what cannot be measured gives a line with "error". step: forward, backward, clipping of the global norm at 1, fused AdamW
on bf16 parameters, gradients and moments. Times are from the host's start of a step on an idle card to the card's
end of it; `back_to_back` is the mean of steps that nobody waits for in between. gemm: grouped products by
torch.nn.functional.grouped_mm (or torch._grouped_mm), and dense ones of the same FLOPs by cuBLAS.
"""

import argparse
import functools
import gc
import json
import pathlib
import shlex
import statistics
import subprocess
import sys
import threading
import time

import torch

STEPS = {
    "8x7b_2l": {"hidden": 4096, "intermediate": 14336, "heads": 32, "kv_heads": 8, "experts": 8, "topk": 2, "layers": 2},
    "fine_64e_4l": {"hidden": 2048, "intermediate": 1024, "heads": 32, "kv_heads": 8, "experts": 64, "topk": 8, "layers": 4},
}
ROWS, LENGTH, VOCABULARY = 2, 8192, 256
# case: experts, rows, in features, out features
PRODUCTS = {
    "8x7b": (8, 32768, 4096, 28672),
    "8x7b_down": (8, 32768, 14336, 4096),
    "fine_64e": (64, 131072, 2048, 2048),
    "e128": (128, 65536, 2048, 1536),
}


class Meter:
    """Clocks and watts while the samples run: what nvidia-smi says every 100 ms, as medians."""

    FIELDS = ("clocks.sm", "clocks.mem", "power.draw")

    def __init__(self, on=True):
        self.on = on
        self.process = None

    def __enter__(self):
        self.rows = []
        if not self.on:
            return self
        command = ["nvidia-smi", "--id=0", "--query-gpu=" + ",".join(self.FIELDS), "--format=csv,noheader,nounits", "-lms", "100"]
        try:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:
            return self
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()
        return self

    def read(self):
        for line in self.process.stdout:
            try:
                self.rows.append([float(word) for word in line.split(",")])
            except ValueError:
                pass

    def __exit__(self, *_):
        if self.process:
            self.process.terminate()
            self.process.wait()
            self.thread.join(timeout=2)

    def report(self):
        if not self.rows:
            return {"clocks_mhz": None, "watts": None}
        sm, memory, watts = (statistics.median(column) for column in zip(*self.rows))
        return {"clocks_mhz": {"sm": round(sm), "memory": round(memory)}, "watts": round(watts)}


@functools.cache
def machine():
    properties = torch.cuda.get_device_properties(0)
    query = ["nvidia-smi", "--id=0", "--query-gpu=driver_version,uuid", "--format=csv,noheader"]
    driver, uuid = "", ""
    try:
        driver, uuid = (word.strip() for word in subprocess.run(query, capture_output=True, text=True, check=True).stdout.split(","))
    except (OSError, ValueError, subprocess.CalledProcessError):
        pass
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id")
    return {
        "device": properties.name,
        "driver": driver,
        "uuid": uuid,
        "boot": boot.read_text().strip() if boot.is_file() else "",
        "toolkit": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }


def version():
    text = f"torch {torch.__version__}"
    if "transformers" in sys.modules:
        text = f"transformers {sys.modules['transformers'].__version__} {text}"
    return text


def put(**line):
    print(json.dumps({**line, **machine(), "version": version(), "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}), flush=True)


def summary(samples, unit):
    return {
        "unit": unit,
        "median": round(statistics.median(samples), 4),
        "min": round(min(samples), 4),
        "max": round(max(samples), 4),
        "n": len(samples),
        "samples": [round(sample, 4) for sample in samples],
    }


def step_flops(shape, tokens):
    """Of the model: 2 a multiply-add, backward twice forward, attention's masked half not counted."""
    hidden, width = shape["hidden"], shape["hidden"] // shape["heads"]
    projections = 2 * hidden * hidden * 2 + 2 * hidden * 2 * shape["kv_heads"] * width
    core = 2 * LENGTH * hidden  # two products over half of LENGTH keys
    experts = 3 * 2 * hidden * shape["intermediate"] * shape["topk"] + 2 * hidden * shape["experts"]
    return 3 * tokens * (shape["layers"] * (projections + core + experts) + 2 * hidden * VOCABULARY)


def make_model(shape, experts):
    import transformers

    config = transformers.MixtralConfig(
        vocab_size=VOCABULARY,
        hidden_size=shape["hidden"],
        intermediate_size=shape["intermediate"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["kv_heads"],
        num_local_experts=shape["experts"],
        num_experts_per_tok=shape["topk"],
        max_position_embeddings=LENGTH,
        output_router_logits=True,
        router_aux_loss_coef=0.01,
        use_cache=False,
    )
    config._attn_implementation = "sdpa"
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            model = transformers.MixtralForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    model.set_experts_implementation(experts)
    if model.config._experts_implementation != experts:
        raise RuntimeError(f"transformers {transformers.__version__} does not take experts implementation {experts}")
    return model.train()


def measure_step(case, experts, accumulate, options):
    shape = STEPS[case]
    torch.manual_seed(42)
    model = make_model(shape, experts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    batches = [torch.randint(4, VOCABULARY, (ROWS, LENGTH), device="cuda") for _ in range(accumulate)]

    def step():
        for tokens in batches:
            loss = model(input_ids=tokens, labels=tokens).loss
            (loss / accumulate).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    for _ in range(options.warmup):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    samples = []
    with Meter(options.meter) as meter:
        for _ in range(options.samples):
            start = time.perf_counter()
            loss = step()
            torch.cuda.synchronize()
            samples.append(1e3 * (time.perf_counter() - start))
        start = time.perf_counter()
        for _ in range(options.samples):
            step()
        torch.cuda.synchronize()
        back_to_back = 1e3 * (time.perf_counter() - start) / options.samples
    tokens = ROWS * LENGTH * accumulate
    put(
        case=f"train_step.{case}.bf16" + (f".acc{accumulate}" if accumulate > 1 else ""),
        side=f"hf_{experts}",
        **summary(samples, "ms"),
        back_to_back=round(back_to_back, 3),
        tokens_per_second=round(1e3 * tokens / statistics.median(samples)),
        model_tflops=round(step_flops(shape, tokens) / statistics.median(samples) / 1e9, 1),
        memory_gib=round(torch.cuda.max_memory_allocated() / 2**30, 2),
        loss=round(loss.item(), 4),
        parameters=sum(p.numel() for p in model.parameters()),
        shapes={**shape, "rows": ROWS, "length": LENGTH, "vocabulary": VOCABULARY},
        routing="learned",
        **meter.report(),
    )


def splits(experts, rows, routing):
    """Equal parts; or, of each eight experts, one with four times the mean, two without a row, the others uneven: the
    sizes of the cases in moebius/ops/grouped_gemm/cases.cpp."""
    mean = rows // experts
    if routing == "balanced":
        return torch.full((experts,), mean, dtype=torch.int64)
    half = mean // 2
    eight = [4 * mean, 0, 0, half - 37, half + 37, 3 * mean // 2 - 11, mean + 11, half]
    return torch.tensor(eight * (experts // 8), dtype=torch.int64)


def time_kernel(run, options):
    for _ in range(options.warmup):
        run()
    torch.cuda.synchronize()
    samples = []
    with Meter(options.meter) as meter:
        # The clocks of a card at work, for long enough that the meter sees them.
        until = time.perf_counter() + options.heat
        while time.perf_counter() < until:
            for _ in range(4):
                run()
            torch.cuda.synchronize()
        for _ in range(options.samples):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            run()
            end.record()
            end.synchronize()
            samples.append(begin.elapsed_time(end))
    return samples, meter.report()


def measure_products(case, routings, options):
    experts, rows, inner, outer = PRODUCTS[case]
    grouped = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    bf16 = {"device": "cuda", "dtype": torch.bfloat16}
    torch.manual_seed(42)
    x, dy = torch.randn(rows, inner, **bf16), torch.randn(rows, outer, **bf16)
    weight = torch.randn(experts, outer, inner, **bf16) * 0.02
    shapes = {"experts": experts, "rows": rows, "in": inner, "out": outer}

    ours = None
    if options.moebius:
        sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "torch"))
        from moebius_torch import Moebius

        ours = Moebius(options.moebius)

    def alike(mine, theirs):
        """Raises unless both products are the same but for their sums' order, in bf16."""
        error = ((mine.float() - theirs.float()).norm() / theirs.float().norm()).item()
        if not error < 4e-3:
            raise RuntimeError(f"ours differs from torch's by {error:.2e} of its norm")

    def report(side, kind, routing, run):
        line = {"case": f"grouped_gemm.{case}.{kind}.bf16" + (".skewed" if routing == "skewed" else ""), "side": side}
        try:
            samples, meter = time_kernel(run, options)
        except RuntimeError as error:
            put(**line, error=str(error).splitlines()[0])
            return
        rates = [2e-9 * rows * inner * outer / sample for sample in samples]
        put(**line, **summary(rates, "TFLOP/s"), shapes=shapes, routing=routing, **meter)

    for routing in routings:
        offsets = splits(experts, rows, routing).cumsum(0).to(torch.int32).cuda()
        report("torch", "fwd", routing, lambda: grouped(x, weight.transpose(-2, -1), offs=offsets))
        report("torch", "dgrad", routing, lambda: grouped(dy, weight, offs=offsets))
        report("torch", "wgrad", routing, lambda: grouped(dy.t(), x, offs=offsets))
        if not ours:
            continue
        # Ours in this process, on the same tensors.
        sizes = splits(experts, rows, routing).cuda()
        for kind, a, b, other in (
            ("fwd", x, weight, lambda: grouped(x, weight.transpose(-2, -1), offs=offsets)),
            ("dgrad", dy, weight, lambda: grouped(dy, weight, offs=offsets)),
            ("wgrad", dy, x, lambda: grouped(dy.t(), x, offs=offsets)),
        ):
            theirs = other()
            out = torch.empty(theirs.shape, **bf16)
            alike(ours.grouped_gemm(kind, a, b, sizes, out), theirs)
            del theirs
            report("moebius_in_torch", kind, routing, lambda: ours.grouped_gemm(kind, a, b, sizes, out))
    one = weight[0]
    report("cublas", "fwd", "dense", lambda: x @ one.t())
    report("cublas", "dgrad", "dense", lambda: dy @ one)
    report("cublas", "wgrad", "dense", lambda: dy.t() @ x)


def measure_fp8(options):
    """A dense product of eight-bit operands with one scale each, at 8x7b's sizes."""
    _, rows, inner, outer = PRODUCTS["8x7b"]
    torch.manual_seed(42)
    one = torch.ones((), device="cuda", dtype=torch.float32)
    x = torch.randn(rows, inner, device="cuda").to(torch.float8_e4m3fn)
    weight = torch.randn(outer, inner, device="cuda").to(torch.float8_e4m3fn)
    for fast in (False, True):
        def run():
            return torch._scaled_mm(x, weight.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=fast)

        samples, meter = time_kernel(run, options)
        rates = [2e-9 * rows * inner * outer / sample for sample in samples]
        put(case="fp8.8x7b.dense" + ("_fast" if fast else ""), side="cublas", **summary(rates, "TFLOP/s"), **meter)


def measure_copy(options):
    source = torch.randn(1 << 30, device="cuda", dtype=torch.float32)
    target = torch.empty_like(source)
    samples, meter = time_kernel(lambda: target.copy_(source), options)
    rates = [2e-9 * source.numel() * 4 / sample for sample in samples]
    put(case="copy", side="torch", **summary(rates, "TB/s"), bytes=2 * source.numel() * 4, **meter)


def words(text):
    return text.split(",")


def arguments(given=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("step", "gemm", "copy", "fp8", "serve"))
    parser.add_argument("--case", type=words, help="of the steps or products; default: all")
    parser.add_argument("--experts", type=words, default=["eager", "grouped_mm"])
    parser.add_argument("--accumulate", type=lambda text: [int(word) for word in words(text)], default=[1])
    parser.add_argument("--routing", type=words, default=["balanced", "skewed"])
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--samples", type=int, default=12)
    parser.add_argument("--heat", type=float, default=0.5, help="seconds that a product runs before its samples")
    parser.add_argument("--moebius", type=pathlib.Path, help="libmoebius_torch.so: gemm times ours on torch's tensors too")
    parser.add_argument("--no-meter", dest="meter", action="store_false", help="the caller reads clocks and watts itself")
    options = parser.parse_args(given)
    known = STEPS if options.what == "step" else PRODUCTS
    unknown = [case for case in options.case or [] if case not in known]
    if unknown:
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(known)}")
    options.case = options.case or list(known)
    return options


def attempt(case, side, measure):
    try:
        measure()
    except (RuntimeError, ValueError, ImportError, AttributeError) as error:
        put(case=case, side=side, error=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    gc.collect()
    torch.cuda.empty_cache()


def work(options):
    if options.what == "copy":
        measure_copy(options)
    elif options.what == "fp8":
        attempt("fp8.8x7b.dense", "cublas", lambda: measure_fp8(options))
    elif options.what == "gemm":
        for case in options.case:
            attempt(f"grouped_gemm.{case}", "torch", lambda: measure_products(case, options.routing, options))
    else:
        for case in options.case:
            for accumulate in options.accumulate:
                for experts in options.experts:
                    attempt(
                        f"train_step.{case}.bf16" + (f".acc{accumulate}" if accumulate > 1 else ""),
                        f"hf_{experts}",
                        lambda: measure_step(case, experts, accumulate, options),
                    )


def serve():
    import transformers

    # Loads what a step needs, so that no line below waits for it.
    transformers.MixtralForCausalLM
    print(json.dumps({"ready": True, "version": version(), **machine()}), flush=True)
    for line in sys.stdin:
        try:
            work(arguments(shlex.split(line)))
        except SystemExit as error:
            print(json.dumps({"error": f"{line.strip()}: {error}"}), flush=True)
        print(json.dumps({"done": True}), flush=True)


def main():
    options = arguments()
    if not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU")
    if options.what == "serve":
        serve()
    else:
        work(options)


if __name__ == "__main__":
    main()
