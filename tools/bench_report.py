#!/usr/bin/env python3
"""Writes docs/performance.md and the table of figures in README.md from bench/results/*.json.

    tools/bench_report.py             writes both
    tools/bench_report.py --check     fails if they are not what it would write
    tools/bench_report.py --self-test

A result file is a list of cases, or an object with the list under "results". A case (or file) with "unreliable": true was
measured beside other work: only its ratios are printed. parity.json and gpu_tests.json are no lists of cases. Where files of
operations have changed since gpu_tests.json's commit, the pages are marked as stale when they are written; --check takes them
with and without that mark, since any later commit may be the one that makes it true.
"""

import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- figures: written by tools/bench_report.py -->", "<!-- end of figures -->"
NONE = "No figures have been measured yet.\n"
HEAD = """# Performance

Written by `tools/bench_report.py` from the files in [bench/results](../bench/results), which `make bench` and `make bench-gpu` write;
nothing here is typed in. A ratio above 1 means that Moebius is ahead. Medians; both sides measured in the same run, but for
those under "Runs of others".
"""
TESTED = ("moebius/ops", "moebius/ptx", "moebius/runtime")
STALE = "; **stale**: operations have changed since"


def load(folder):
    """[(file name, case)], sorted; every case gets its file's `unreliable`."""
    cases = []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        whole = content if isinstance(content, dict) else {}
        for case in whole.get("results", []) if whole else content:
            case.setdefault("unreliable", whole.get("unreliable", False))
            for key in ("case", "unit", "ours", "commit", "date"):
                if key not in case:
                    raise SystemExit(f"{path.name}: a case without '{key}'")
            cases.append((path.name, case))
    return cases


def number(value):
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def figure(side, case):
    if case["unreliable"]:
        return "(only ratios)"
    text = f"{number(side['median'])} {case['unit']}"
    if case.get("rate") and side is case["ours"]:
        unit = "GFLOP/s" if case.get("limit") else "GB/s"
        text += f" ({number(case['rate'][unit])} {unit})"
    return text


def other_sides(case):
    """"hf_eager 2,500 ms (× 2.5)" of each."""
    parts = []
    for name, side in sorted((case.get("others") or {}).items()):
        ratio = f"× {number((case.get('ratio') or {}).get(name))}"
        parts.append(f"{name} {ratio}" if case["unreliable"] else f"{name} {figure(side, case)} ({ratio})")
    return ", ".join(parts) or "–"


def several(cases):
    """Names of cases that were measured with more than one variant."""
    names = [case["case"] for _, case in cases]
    return {name for name in names if names.count(name) > 1}


def rows(cases, prefix):
    repeated = several(cases)
    for name, case in cases:
        link = f"[{case['case']}]({prefix}bench/results/{name})"
        if case["case"] in repeated:
            link += f", {case['ours'].get('variant', '?')}"
        yield f"| {link} | {figure(case['ours'], case)} | {other_sides(case)} |"


def table(cases, prefix):
    if not cases:
        return NONE
    head = "| case | Moebius | other sides (× above 1: Moebius ahead) |\n|---|---|---|\n"
    return head + "\n".join(rows(cases, prefix)) + "\n"


def details(cases):
    text = []
    for name, case in cases:
        parts = [f"n = {case['ours'].get('n', '?')}"]
        if case.get("device"):
            parts.append(case["device"])
        if case.get("threads"):
            parts.append(f"{case['threads']} thread" + ("s" if case["threads"] != 1 else ""))
        if case["ours"].get("variant"):
            parts.append(case["ours"]["variant"])
        if case.get("watts"):
            parts.append(f"{case['watts']} W at {number(case['clocks_mhz']['sm'])} MHz")
        for other, side in sorted((case.get("others") or {}).items()):
            parts.append(f"{other} = {side.get('version', '?')}" + (" (not the same run)" if side.get("same_run") is False else ""))
            if side.get("back_to_back"):
                parts[-1] += f", queued {number(side['back_to_back'])} {case['unit']}"
        if case.get("ratio") and case.get("ratio_of"):
            parts.append(f"ratio: {case['ratio_of']}")
        if case.get("limit"):
            parts.append(f"{100 * case['limit']['share']:.0f}% of {case['limit']['name']}")
        for owner, state in sorted((case.get("optimizer_state") or {}).items()):
            parts.append(f"{owner}: {state}")
        if case.get("dirty"):
            parts.append("built from a tree with changes")
        if case["unreliable"]:
            parts.append("other work ran on the machine: only ratios count")
        parts += [f"commit {case['commit'][:12]}", case["date"]]
        if case.get("memory_gib"):
            parts.append("memory " + ", ".join(f"{side} {number(gib)} GiB" for side, gib in sorted(case["memory_gib"].items())))
        if case.get("traced"):
            traced = case["traced"]
            sums = ", ".join(f"{part} {number(ms)}" for part, ms in traced["parts_ms"].items())
            parts.append(f"parts, from a traced run of {number(traced['step_ms'])} ms a step: {sums}; busy {number(traced['busy_ms'])} ms")
        text.append(f"- `{case['case']}` ({name}): " + "; ".join(parts))
    return "\n".join(text) + "\n" if text else ""


def changed_since(root, commit):
    """Whether operations or what they stand on changed after that commit; None: git does not say."""
    command = ["git", "log", "--oneline", "-1", f"{commit}..HEAD", "--", *TESTED]
    try:
        log = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return bool(log.stdout.strip())


def gpu_tests(root, prefix, changed=changed_since):
    """A line on the tests that ran on a GPU, or nothing."""
    path = root / "bench/results/gpu_tests.json"
    if not path.is_file():
        return ""
    tests = json.loads(path.read_text(encoding="utf-8"))
    counts = ", ".join(f"{number(tests[key])} {key}" for key in ("passed", "failed", "skipped") if key in tests)
    parts = [tests["card"], f"commit {tests['commit'][:12]}" + (" with changes" if tests.get("dirty") else "")]
    parts += [tests["date"]] if "date" in tests else []
    text = f"Tests of operations on a GPU ([gpu_tests.json]({prefix}bench/results/gpu_tests.json); {', '.join(parts)}): {counts}"
    for tool, result in (tests.get("sanitizers") or {}).items():
        text += f"; {tool}: {result['clean']} of {result['operations']} operations clean"
    for program, result in (tests.get("programs") or {}).items():
        text += f"; {program} on the GPU: " + ", ".join(f"{number(count)} {word}" for word, count in result.items())
    return "\n" + text + (STALE if changed(root, tests["commit"]) else "") + ".\n"


def curves(root, prefix):
    """Held-out losses of each precision, and the plots of tools/loss_curves.py; or nothing."""
    text = ""
    for path in sorted((root / "bench/results/curves").glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        model = ", ".join(f"{key} {value}" for key, value in content["model"].items() if key != "config")
        text += f"\n{content['model']['config']}{' with ' + model if model else ''}, {number(content['steps'])} steps, {content['device']}, "
        text += f"{content['program']}, {content['date']} ([{path.name}]({prefix}bench/results/curves/{path.name})):\n\n"
        text += "| precision | held-out loss: mean (least to most) | over the first | within the spread of its seeds |\n|---|---|---|---|\n"
        for precision, row in content["held_out"].items():
            spread = f"{row['mean']:.5f} ({row['least']:.5f} to {row['most']:.5f}, {row['seeds']} seeds)"
            beside = f"{row['over_first']:+.5f}" if "over_first" in row else "–"
            within = {True: "yes", False: f"no (spread {row.get('spread_of_first')})", None: "–"}[row.get("within")]
            text += f"| {precision} | {spread} | {beside} | {within} |\n"
        text += f"\n![{path.stem}: training loss by step]({prefix}bench/results/curves/{path.stem}.svg)\n"
    return "\n## Loss curves\n" + text if text else ""


def profiles(root):
    """What Nsight Compute says of each kernel, or nothing."""
    path = root / "bench/results/gpu_profile.json"
    if not path.is_file():
        return ""
    text = "\n## Kernels under Nsight Compute\n\nOne launch each, from cold caches, clocks left alone ([gpu_profile.json](../bench/results/gpu_profile.json), "
    text += "`tools/profile_kernels.py`); per cent of what the card can do. What bounds them: [kernels](kernels.md).\n\n"
    text += "| case: kernel | µs | tensor pipe | DRAM: per cent, TB/s | L2 | issue slots | registers | most frequent stalls, per cent | commit |\n"
    text += "|---|---|---|---|---|---|---|---|---|\n"
    for row in json.loads(path.read_text(encoding="utf-8"))["kernels"]:
        stalls = ", ".join(f"{name} {share}" for name, share in row.get("stalls_percent", {}).items())
        cells = [number(row.get(key)) for key in ("us", "tensor_percent", "dram_percent", "l2_percent", "issue_percent", "registers")]
        cells[2] += f", {number(row.get('dram_tb_per_s'))}"
        commit = row["build"].split("(")[-1].rstrip(")")
        variant = f" ({row['variant']})" if "variant" in row else ""
        text += f"| `{row['case']}`{variant}: `{row['kernel']}` | " + " | ".join(cells) + f" | {stalls} | {commit} |\n"
    return text


def dense_of(cases):
    """cuBLAS's dense product of the largest experts' sizes, that ours was compared with: TFLOP/s, or None."""
    return next((case["limit"]["value"] for _, case in cases if case["case"] == "grouped_gemm.8x7b.fwd.bf16" and "limit" in case), None)


def other_runs(root, cases):
    """What others' programs took in runs of their own, related through a side that both runs measured; or nothing."""
    path = root / "bench/baselines/other_runs.json"
    if not path.is_file():
        return ""
    content = json.loads(path.read_text(encoding="utf-8"))
    ours = {case["case"]: case for _, case in cases}
    text = f"\n## Runs of others\n\nNot in the same run as ours: {content['device']}, {content['date']}, {content['source']} "
    text += "([other_runs.json](../bench/baselines/other_runs.json)). What both runs measured says how far the two cards were alike.\n\n"
    text += "| case | other side | measured in both runs: theirs, ours | Moebius | Moebius is ahead |\n|---|---|---|---|---|\n"
    for row in content["results"]:
        case, through = ours.get(row["case"]), row["through"]
        if case is None:
            continue
        both = (case.get("others") or {}).get(through["side"], {}).get("median") or dense_of(cases)
        unit = through.get("unit", row["unit"])
        text += f"| {row['case']} | {row['side']} {number(row['median'])} {row['unit']} ({row['version']}) "
        text += f"| {through['side']}: {number(through['median'])}, {number(both)} {unit} | {figure(case['ours'], case)} "
        text += f"| × {number(row['median'] / case['ours']['median'])} |\n"
    return text


def pages(root):
    """{path: text} of what is written."""
    cases = load(root / "bench/results")
    performance = HEAD + "\n" + table(cases, "../") + other_runs(root, cases) + gpu_tests(root, "../") + curves(root, "../") + profiles(root) + ("\n## How each was measured\n\n" + details(cases) if cases else "")
    readme = (root / "README.md").read_text(encoding="utf-8")
    if BEGIN not in readme or END not in readme:
        raise SystemExit(f"README.md has no place for figures ({BEGIN} … {END})")
    before, rest = readme.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    # Those that have another side, our own not counted; of uneven splits, docs/performance.md alone.
    shown = [(name, case) for name, case in cases if set(case.get("others") or {}) - {"bf16", "alone"} and case.get("routing") != "skewed"]
    return {
        root / "docs/performance.md": performance,
        root / "README.md": before + BEGIN + "\n" + table(shown, "") + gpu_tests(root, "") + END + after,
    }


def unmarked(text):
    return text.replace(STALE, "")


def self_test():
    import tempfile

    case = {
        "case": "train_step.l0_cpu.fp32",
        "unit": "ms",
        "ours": {"median": 1000, "n": 10},
        "others": {"hf_eager": {"median": 2500, "n": 10, "version": "x"}},
        "ratio": {"hf_eager": 2.5},
        "commit": "0123456789abcdef",
        "date": "2026-01-01",
    }
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "bench/results").mkdir(parents=True)
        (root / "README.md").write_text(f"a\n{BEGIN}\n{END}\nb\n", encoding="utf-8")
        if NONE not in pages(root)[root / "README.md"]:
            failures.append("no results: the README does not say so")
        (root / "bench/results/a.json").write_text(json.dumps([case]), encoding="utf-8")
        text = pages(root)[root / "README.md"]
        if "| 1,000 ms | hf_eager 2,500 ms (× 2.5) |" not in text or not text.startswith("a\n") or not text.endswith("b\n"):
            failures.append(f"a result: {text}")
        (root / "bench/results/a.json").write_text(json.dumps({"unreliable": True, "results": [case]}), encoding="utf-8")
        text = pages(root)[root / "README.md"]
        if "1,000" in text or "| hf_eager × 2.5 |" not in text:
            failures.append(f"an unreliable result: {text}")
        two = [{**case, "ours": {"median": 1, "n": 10, "variant": variant}} for variant in ("one_way", "another")]
        (root / "bench/results/a.json").write_text(json.dumps(two), encoding="utf-8")
        text = pages(root)[root / "README.md"]
        if text.count(", one_way |") != 1 or text.count(", another |") != 1:
            failures.append(f"two variants of a case: {text}")
        on_gpu = {**case, "watts": 690, "clocks_mhz": {"sm": 1410}, "optimizer_state": {"ours": "fp32"}, "routing": "skewed"}
        on_gpu["traced"] = {"parts_ms": {"experts": 600, "attention": 300}, "busy_ms": 900, "step_ms": 901, "kernels": 7}
        (root / "bench/results/a.json").write_text(json.dumps([on_gpu]), encoding="utf-8")
        timed = {**case, "unreliable": False, "others": {}, "rate": {"GFLOP/s": 3, "GB/s": 40}}
        if figure(timed["ours"], timed) != "1,000 ms (40 GB/s)" or other_sides(timed) != "–":
            failures.append(f"a result with a rate: {figure(timed['ours'], timed)}")
        tests = {"card": "H", "commit": "0123456789abcdef", "passed": 4003, "failed": 0, "skipped": 2, "cases": 4005, "ops": {}}
        tests["sanitizers"] = {"memcheck": {"operations": 30, "clean": 29, "not_clean": ["x"]}}
        (root / "bench/results/gpu_tests.json").write_text(json.dumps(tests), encoding="utf-8")
        written = pages(root)
        text = written[root / "docs/performance.md"]
        if "; 690 W at 1,410 MHz; " not in text or "; ours: fp32; " not in text or "a step: experts 600, attention 300; busy 900 ms" not in text:
            failures.append(f"a result of a GPU: {text}")
        line = "commit 0123456789ab): 4,003 passed, 0 failed, 2 skipped; memcheck: 29 of 30 operations clean.\n"
        if line not in text or line not in written[root / "README.md"] or "train_step" in written[root / "README.md"]:
            failures.append(f"tests on a GPU: {written}")
        stale = gpu_tests(root, "", lambda *_: True)
        if not stale.endswith(STALE + ".\n") or unmarked(stale) != gpu_tests(root, "", lambda *_: False):
            failures.append(f"stale tests: {stale}")
        (root / "bench/results/curves").mkdir()
        row = {"mean": 1.36, "least": 1.35, "most": 1.37, "seeds": 3}
        held_out = {"bf16": row, "block": {**row, "over_first": 0.001, "spread_of_first": 0.02, "within": True}}
        content = {"model": {"config": "L0"}, "steps": 1000, "device": "cuda", "program": "m", "date": "d", "held_out": held_out, "runs": []}
        (root / "bench/results/curves/l0.json").write_text(json.dumps(content), encoding="utf-8")
        text = pages(root)[root / "docs/performance.md"]
        if "| block | 1.36000 (1.35000 to 1.37000, 3 seeds) | +0.00100 | yes |" not in text or "(../bench/results/curves/l0.svg)" not in text:
            failures.append(f"loss curves: {text}")
        profile = {"case": "a/b", "kernel": "c<1>", "us": 2000, "dram_percent": 80, "registers": 40, "stalls_percent": {"wait": 9}, "build": "1 (012)"}
        (root / "bench/results/gpu_profile.json").write_text(json.dumps({"kernels": [profile]}), encoding="utf-8")
        if "| `a/b`: `c<1>` | 2,000 | – | 80, – | – | – | 40 | wait 9 | 012 |" not in pages(root)[root / "docs/performance.md"]:
            failures.append(f"a kernel's profile: {pages(root)[root / 'docs/performance.md']}")
    print("\n".join(failures) if failures else "bench_report: self-test, 10 cases: all as expected")
    return 1 if failures else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    if options.self_test:
        return self_test()
    wrong = 0
    for path, text in pages(ROOT).items():
        if options.check:
            if not path.is_file() or unmarked(path.read_text(encoding="utf-8")) != unmarked(text):
                print(f"{path.relative_to(ROOT)} is not what bench/results say; tools/bench_report.py writes it")
                wrong += 1
        else:
            path.write_text(text, encoding="utf-8")
    print(f"bench_report: {len(load(ROOT / 'bench/results'))} cases, {wrong} pages differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
