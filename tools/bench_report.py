#!/usr/bin/env python3
"""Writes docs/performance.md and the table of figures in README.md from bench/results/*.json.

    tools/bench_report.py             writes both
    tools/bench_report.py --check     fails if they are not what it would write
    tools/bench_report.py --self-test

A result file is a list of cases, or an object with the list under "results". A case (or file) with "unreliable": true was
measured beside other work: only its ratios are printed.
"""

import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- figures: written by tools/bench_report.py -->", "<!-- end of figures -->"
NONE = "No figures have been measured yet.\n"
HEAD = """# Performance

Written by `tools/bench_report.py` from the files in [bench/results](../bench/results), which `make bench` writes; nothing here is
typed in. A ratio above 1 means that Moebius is ahead. Medians; both sides measured in the same run.
"""


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
    return "(only ratios)" if case["unreliable"] else f"{number(side['median'])} {case['unit']}"


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
        others = case.get("others") or {}
        if not others:
            yield f"| {link} | {figure(case['ours'], case)} | – | – |"
        for other, side in sorted(others.items()):
            ratio = (case.get("ratio") or {}).get(other)
            yield f"| {link} | {figure(case['ours'], case)} | {other}: {figure(side, case)} | {number(ratio)} |"


def table(cases, prefix):
    if not cases:
        return NONE
    head = "| case | Moebius | other side | ratio |\n|---|---|---|---|\n"
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
        for other, side in sorted((case.get("others") or {}).items()):
            parts.append(f"{other} = {side.get('version', '?')}" + (" (not the same run)" if side.get("same_run") is False else ""))
        if case.get("limit"):
            parts.append(f"{100 * case['limit']['share']:.0f}% of {case['limit']['name']}")
        if case["unreliable"]:
            parts.append("other work ran on the machine: only ratios count")
        parts += [f"commit {case['commit'][:12]}", case["date"]]
        if case.get("memory_gib"):
            parts.append("memory " + ", ".join(f"{side} {number(gib)} GiB" for side, gib in sorted(case["memory_gib"].items())))
        text.append(f"- `{case['case']}` ({name}): " + "; ".join(parts))
    return "\n".join(text) + "\n" if text else ""


def pages(root):
    """{path: text} of what is written."""
    cases = load(root / "bench/results")
    performance = HEAD + "\n" + table(cases, "../") + ("\n## How each was measured\n\n" + details(cases) if cases else "")
    readme = (root / "README.md").read_text(encoding="utf-8")
    if BEGIN not in readme or END not in readme:
        raise SystemExit(f"README.md has no place for figures ({BEGIN} … {END})")
    before, rest = readme.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    shown = [(name, case) for name, case in cases if case.get("others")]
    return {
        root / "docs/performance.md": performance,
        root / "README.md": before + BEGIN + "\n" + table(shown, "") + END + after,
    }


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
        if "| 1,000 ms | hf_eager: 2,500 ms | 2.5 |" not in text or not text.startswith("a\n") or not text.endswith("b\n"):
            failures.append(f"a result: {text}")
        (root / "bench/results/a.json").write_text(json.dumps({"unreliable": True, "results": [case]}), encoding="utf-8")
        text = pages(root)[root / "README.md"]
        if "1,000" in text or "| 2.5 |" not in text:
            failures.append(f"an unreliable result: {text}")
        two = [{**case, "ours": {"median": 1, "n": 10, "variant": variant}} for variant in ("one_way", "another")]
        (root / "bench/results/a.json").write_text(json.dumps(two), encoding="utf-8")
        text = pages(root)[root / "README.md"]
        if text.count(", one_way |") != 1 or text.count(", another |") != 1:
            failures.append(f"two variants of a case: {text}")
    print("\n".join(failures) if failures else "bench_report: self-test, 4 cases: all as expected")
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
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                print(f"{path.relative_to(ROOT)} is not what bench/results say; tools/bench_report.py writes it")
                wrong += 1
        else:
            path.write_text(text, encoding="utf-8")
    print(f"bench_report: {len(load(ROOT / 'bench/results'))} cases, {wrong} pages differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
