#!/usr/bin/env python3
"""Profiles kernels of the benchmark's cases by Nsight Compute and writes bench/results/gpu_profile.json: what bounds each.

    tools/profile_kernels.py [--bin DIR] [--out FILE] [--logs DIR] [--limit SECONDS] [--list] [CASE…]

CASE is a part of "op/name" as moebius_kernel_bench --list prints it, the first case that contains it, or CASE=VARIANT; without any, those of
CASES below. Each runs in a process of its own; of a kernel that was launched several times the last launch counts. Clocks are left alone
(--clock-control none), and Nsight Compute flushes the caches before a launch: times are those of a lone launch from cold caches.
--self-test reads a table that is written here.
"""

import argparse
import csv
import io
import json
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SECTIONS = ["SpeedOfLight", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis", "SchedulerStats", "WarpStateStats", "LaunchStats", "Occupancy"]
STALL = "smsp__average_warps_issue_stalled_"

# How long the tensor cores work, from best to last: no section has it, and names differ between cards. (Instructions of this pipe, which
# a section does have, say nothing where one of them is a product of 64 x 256.)
TENSOR = ("sm__pipe_tensor_cycles_active", "sm__pipe_tensor_op_gmma_cycles_active", "sm__pipe_tensor_op_hmma_cycles_active")

# name in the result: (parts of the metric's name, all of which it has, alternatives from best to last), factor
FIGURES = {
    "us": ([("gpu__time_duration.sum",)], 1e-3),
    "ghz": ([("sm__cycles_elapsed.avg.per_second",), ("smsp__cycles_elapsed.avg.per_second",)], 1e-9),
    "tensor_percent": ([("sm__pipe_tensor", "cycles_active", "pct")], 1),
    "issue_percent": ([("sm__inst_issued.avg.pct",), ("smsp__issue_active.avg.pct",), ("sm__inst_executed.avg.pct",), ("smsp__issue_active.avg.per_cycle_active",)], 1),
    "dram_percent": ([("gpu__dram_throughput.avg.pct",), ("dram__throughput.avg.pct",)], 1),
    "dram_tb_per_s": ([("dram__bytes.sum.per_second",)], 1e-12),
    "l2_percent": ([("lts__t_sectors.avg.pct",), ("lts__throughput.avg.pct",)], 1),
    "memory_percent": ([("gpu__compute_memory_throughput.avg.pct",)], 1),
    "registers": ([("launch__registers_per_thread",)], 1),
    "warps_percent": ([("sm__warps_active.avg.pct",)], 1),
    "blocks": ([("launch__grid_size",)], 1),
    "threads": ([("launch__block_size",)], 1),
}
# What has to be in bytes or in nanoseconds for the factors above: --print-units base.

CASES = [
    "router/", "router_backward/", "permutation/", "permute_scalars/", "gather_rows/", "combine_rows/", "rms_norm/bf16", "rms_norm_backward/bf16",
    "adamw/", "cross_entropy/bf16", "embedding/", "embedding_backward/", "rope/", "sum_of_squares/", "quantize/", "tensor_amax/",
    "scaled_glu_quantize/", "scaled_glu_backward_quantize/",
    "grouped_gemm/forward.bf16_bf16.8_experts.", "grouped_gemm/wgrad.bf16_f32.8_experts.",
    "grouped_gemm/forward.bf16_bf16.128_experts.", "grouped_gemm/wgrad.bf16_f32.128_experts.",
    "grouped_gemm_quantized/forward.tensor.f8e4m3_f8e4m3_bf16.8_experts.", "grouped_gemm_quantized/forward.block128.f8e4m3_f8e4m3_bf16.8_experts.",
    "grouped_gemm_quantized/wgrad.block128.f8e4m3_f8e4m3_f32.8_experts.", "grouped_mlp/bf16.8_", "grouped_mlp/bf16.64_",
    "grouped_mlp_backward/bf16.8_", "grouped_mlp_backward/bf16.64_", "grouped_mlp_quantized/block128.", "grouped_mlp_quantized_backward/block128.",
    "attention/bf16.2x8192x32x64", "attention_backward/bf16.2x8192x32x64", "attention/bf16.2x8192x32x128", "attention_backward/bf16.2x8192x32x128",
]  # fmt: skip


def launches_of(text):
    """[{metric: number}] with "kernel", of what --page raw --csv printed, in the order of the launches."""
    start = text.find('"ID"')
    if start < 0:
        return []
    rows = list(csv.reader(io.StringIO(text[start:])))
    names = rows[0]
    launches = []
    for row in rows[2:]:  # the second row has the units
        if len(row) != len(names):
            continue
        launch = {}
        for name, value in zip(names, row):
            try:
                launch[name] = float(value.replace(",", ""))
            except ValueError:
                if name == "Kernel Name":
                    launch["kernel"] = value
        launches.append(launch)
    return launches


def figures_of(launch):
    result = {"kernel": re.sub(r"^void |<?unnamed>::|\(anonymous namespace\)::|moebius::ops::|moebius::", "", launch["kernel"]).split("(")[0][:120]}
    for figure, (choices, factor) in FIGURES.items():
        for parts in choices:
            found = [name for name in launch if all(part in name for part in parts)]
            if found:
                result[figure] = float(f"{factor * max(launch[name] for name in found):.4g}")
                break
    stalls = {}
    for name, value in launch.items():
        if name.startswith(STALL) and name.endswith("_per_issue_active.ratio") and "not_issued" not in name:
            stalls[name[len(STALL) : -len("_per_issue_active.ratio")]] = value
    total = sum(stalls.values())
    if total > 0:
        most = sorted(stalls.items(), key=lambda item: -item[1])[:3]
        result["stalls_percent"] = {name: round(100 * value / total) for name, value in most}
    return result


def tensor_metric():
    """--metrics of the first of TENSOR that this card has, or nothing."""
    known = subprocess.run(["ncu", "--query-metrics"], capture_output=True, text=True).stdout
    found = [name for name in TENSOR if re.search(rf"^{name}\b", known, re.MULTILINE)]
    return ["--metrics", f"{found[0]}.avg.pct_of_peak_sustained_elapsed"] if found else []


def last_of_each(launches):
    by_kernel = {}
    for launch in launches:
        if "kernel" in launch:
            by_kernel.pop(launch["kernel"], None)
            by_kernel[launch["kernel"]] = launch
    return list(by_kernel.values())


def self_test():
    text = """==PROF== Connected
"ID","Process ID","Kernel Name","gpu__time_duration.sum","sm__cycles_elapsed.avg.per_second","dram__bytes.sum.per_second",\
"lts__throughput.avg.pct_of_peak_sustained_elapsed","smsp__average_warps_issue_stalled_wait_per_issue_active.ratio",\
"smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio"
"","","","ns","hz","byte/s","%","inst","inst"
"0","7","void <unnamed>::first<int>(Args)","2,000","1500000000","3000000000000","50","1","3"
"1","7","void <unnamed>::first<int>(Args)","1,000","1500000000","3000000000000","60","1","3"
"2","7","second(Args)","500","1.5e9","1e12","6","0","0"
""".replace("\\\n", "")
    found = [figures_of(launch) for launch in last_of_each(launches_of(text))]
    assert [f["kernel"] for f in found] == ["first<int>", "second"], found
    assert found[0]["us"] == 1 and found[0]["ghz"] == 1.5 and found[0]["dram_tb_per_s"] == 3 and found[0]["l2_percent"] == 60, found
    assert found[0]["stalls_percent"] == {"barrier": 75, "wait": 25}, found
    assert "stalls_percent" not in found[1], found
    print("profile_kernels: self-test ok")


def names_of(bench, *options):
    lines = subprocess.run([bench, "--list", *options], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.split()[0] for line in lines if "/" in line.split(" ")[0]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/kernels/bin")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results/gpu_profile.json")
    parser.add_argument("--logs", type=pathlib.Path, default=ROOT / "build/logs")
    parser.add_argument("--limit", type=float, default=500)
    parser.add_argument("--append", action="store_true", help="keep what FILE has of other cases")
    parser.add_argument("--list", action="store_true", help="the cases that would run")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    if options.self_test:
        return self_test()
    bench = options.bin / "moebius_kernel_bench"
    large = names_of(bench)
    # Those of the CPU's benchmark where an operation has no larger one.
    known = large + [name for name in names_of(bench, "--small") if name not in large]
    begin, results, build = time.monotonic(), [], ""
    tensor = [] if options.list else tensor_metric()
    options.logs.mkdir(parents=True, exist_ok=True)
    for wanted in options.cases or CASES:
        part, _, variant = wanted.partition("=")
        case = next((name for name in known if name.startswith(part)), None) or next((name for name in known if part in name), None)
        if case is None:
            print(f"profile: no case has '{part}'", flush=True)
            continue
        if options.list:
            print(case)
            continue
        if time.monotonic() - begin > options.limit:
            print(f"profile: no time left for {case}", flush=True)
            continue
        command = ["ncu", "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base", "--launch-count", "24", *tensor]
        for section in SECTIONS:
            command += ["--section", section]
        command += [str(bench), case, "--runs", "1", "--check", "0"] + ([] if case in large else ["--small"])
        command += ["--variant", variant] if variant else []
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        except subprocess.TimeoutExpired:
            print(f"profile: {case} took over 120 s", flush=True)
            continue
        log = options.logs / f"profile_{case.replace('/', '_')}.csv"
        log.write_text(done.stdout + done.stderr, encoding="utf-8")
        build = next((line.split(", moebius ")[1] for line in done.stdout.splitlines() if ", moebius " in line), build)
        launches = last_of_each(launches_of(done.stdout))
        if not launches:
            print(f"profile: {case}: no kernels ({log}): {done.stderr.strip()[-200:]}", flush=True)
        for launch in launches:
            figures = {"case": case, **({"variant": variant} if variant else {}), **figures_of(launch)}
            results.append(figures)
            print("profile: " + ", ".join(f"{key} {value}" for key, value in figures.items()), flush=True)
    if options.list:
        return 0
    card = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True).stdout.strip()
    about = {"card": card, "build": build, "date": time.strftime("%Y-%m-%d", time.gmtime())}
    done = {figures["case"] for figures in results}
    before = json.loads(options.out.read_text(encoding="utf-8"))["kernels"] if options.append and options.out.is_file() else []
    kept = [figures for figures in before if figures["case"] not in done]
    lines = ",\n".join(json.dumps(figures) for figures in [*kept, *({**figures, **about} for figures in results)])
    options.out.write_text('{"kernels": [\n' + lines + "\n]}\n", encoding="utf-8")
    print(f"profile: {options.out}, {len(results)} kernels, {time.monotonic() - begin:.0f} s")
    return 0 if results else 1


if __name__ == "__main__":
    sys.exit(main())
