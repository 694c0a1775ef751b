"""The parts of a step for tools/bench_gpu_step.py: what the card did in it, kernel by kernel, from bench/trace/kernel_times.cpp.

    tools/bench_gpu_parts.py FILE [STEPS]    the parts of the last steps of a trace, and its longest kernels
"""

import collections
import pathlib
import re
import sys
import tempfile

from bench_gpu_common import Failed, Process

# The first whose pattern is in a kernel's name. Under a recipe `experts` are all products of codes, attention's projections too.
PARTS = {
    "experts": r"grouped_product|grouped_mlp",
    "attention": r"attention|sdpa|cudnn",
    "AdamW": r"adamw",
    "norm's squares": r"squares|clip_factor",
    "quantization": r"quantize|tensor_amax|delayed_scaling|scaled_glu",
    "permutation": r"gather_rows|combine_rows|permute|router|keys_any|scan_sizes|scan_pieces",
    "dense products": r"nvjet|cublas|gemm|split_f32|add_parts",
    "norms, RoPE, residuals": r"rms_norm|rope|add_any|sum_pieces",
}


def read(path):
    """[(start, end, name)] in the order of their starts, ns."""
    events = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        start, end, name = line.split(" ", 2)
        events.append((int(start), int(end), name))
    return events


def traced(bench, label, command):
    """What `read` gives of a run of that command under the tracer. Raises Failed where there is none, or the program fails."""
    tracer = bench.options.bin.parent / "lib" / "libmoebius_kernel_times.so"
    if not tracer.is_file():
        raise Failed(f"{tracer} was not built")
    with tempfile.TemporaryDirectory() as folder:
        trace = pathlib.Path(folder) / "trace"
        environment = {"CUDA_INJECTION64_PATH": str(tracer), "MOEBIUS_KERNEL_TIMES": str(trace)}
        program = Process(f"{label}, traced", command, environment)
        while program.next(bench.deadline):
            pass
        if not trace.is_file():
            raise Failed(f"{label} left no trace")
        return read(trace)


def period_of(events):
    """How many events a step has: the least number after which the names at the end repeat twice; 0: none."""
    names = [event[2] for event in events]
    for period in range(20, len(names) // 3):
        if names[-period:] == names[-2 * period : -period] == names[-3 * period : -2 * period]:
            return period
    return 0


def part_of(name):
    return next((part for part, pattern in PARTS.items() if re.search(pattern, name)), "rest")


def parts(events, steps=3):
    """Of the last steps: {"parts_ms": {part: ms a step}, "busy_ms", "step_ms", "kernels", "adamw_ms": [of each step]}; None where no step repeats."""
    period = period_of(events)
    steps = min(steps, len(events) // period - 1) if period else 0
    if steps < 1:
        return None
    last = events[-steps * period :]
    sums, busy, until = collections.Counter(), 0, 0
    adamw = [0.0] * steps
    for number, (start, end, name) in enumerate(last):
        part = part_of(name)
        sums[part] += (end - start) / steps / 1e6
        if part == "AdamW":
            adamw[number // period] += (end - start) / 1e6
        busy += max(0, end - max(start, until)) / steps / 1e6
        until = max(until, end)
    # From the end of the step before to the end of the last: what lies between steps counts.
    before = max(end for _, end, _ in events[: -steps * period])
    figures = {part: round(sums[part], 3) for part in (*PARTS, "rest") if sums[part]}
    return {"parts_ms": figures, "busy_ms": round(busy, 3), "step_ms": round((until - before) / steps / 1e6, 3), "kernels": period,
            "adamw_ms": [round(ms, 4) for ms in adamw]}


def longest(events, count=25):
    """[(ms, calls, name)] of the last step."""
    times, calls = collections.Counter(), collections.Counter()
    for start, end, name in events[-period_of(events) :]:
        short = re.sub(r"\(anonymous namespace\)::|moebius::|ops::|^void ", "", name)[:150]
        times[short] += (end - start) / 1e6
        calls[short] += 1
    return [(ms, calls[name], name) for name, ms in times.most_common(count)]


def main():
    events = read(pathlib.Path(sys.argv[1]))
    found = parts(events, int(sys.argv[2]) if len(sys.argv) > 2 else 3)
    if found is None:
        print(f"{sys.argv[1]}: {len(events)} events, but no step that repeats", file=sys.stderr)
        return 1
    for part, ms in found["parts_ms"].items():
        print(f"{ms:10.3f} ms  {part}")
    print(f"{found['busy_ms']:10.3f} ms  busy, of {found['step_ms']:.3f} a step; {found['kernels']} kernels, copies and fills")
    for ms, calls, name in longest(events):
        print(f"{ms:10.3f} ms {calls:5d}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
