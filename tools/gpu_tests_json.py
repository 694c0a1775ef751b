#!/usr/bin/env python3
"""Writes bench/results/gpu_tests.json from what `tools/gpu_kernels.sh test` and `… sanitize` left in build/logs (or OUT).

    tools/gpu_tests_json.py [--tests build/logs/gpu_tests.json] [--sanitizer build/logs/sanitizer.txt] [--program NAME=LOG]… [--out FILE]

The counts are gpu_tests' own; a date and, where there is a sanitizer.txt, a summary of each tool are added, and the counts of other
test programs that ran there (MOEBIUS_TEST_DEVICE=cuda), from what GoogleTest printed. Refused: a run of a part of the cases, and one of
a tree with changes.
"""

import argparse
import datetime
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEYS = ("commit", "card", "driver_cuda", "runtime_cuda", "passed", "failed", "skipped", "cases", "ops")


def sanitizer_summaries(text):
    """{tool: operations, how many of them were clean, the lines of the others}"""
    tools = {}
    for line in text.splitlines():
        match = re.match(r"(\S+)\s+(.+?)\s+exit (\d+), (.*)", line)
        if not match:
            continue
        tool = tools.setdefault(match.group(1), {"operations": 0, "clean": 0, "not_clean": [], "names": []})
        tool["operations"] += 1
        tool["names"].append(match.group(2))
        if match.group(3) == "0":
            tool["clean"] += 1
        else:
            tool["not_clean"].append(f"{match.group(2)}: exit {match.group(3)}, {match.group(4)}")
    return tools


def program_counts(text):
    """{passed, failed, skipped} of a run of GoogleTest."""
    if " ran. (" not in text:
        raise SystemExit("a program's log does not end")
    counts = {}
    for word in ("passed", "failed", "skipped"):
        found = re.search(rf"\[\s*{word.upper()}\s*\] (\d+) tests?[.,]", text)
        counts[word] = int(found.group(1)) if found else 0
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tests", type=pathlib.Path, default=ROOT / "build/logs/gpu_tests.json")
    parser.add_argument("--sanitizer", type=pathlib.Path, default=None)
    parser.add_argument("--program", action="append", default=[], metavar="NAME=LOG")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results/gpu_tests.json")
    parser.add_argument("--dirty", action="store_true", help="take a run of a tree with changes, and say so in the file")
    options = parser.parse_args()
    tests = json.loads(options.tests.read_text(encoding="utf-8"))
    missing = [key for key in KEYS if key not in tests]
    if missing:
        raise SystemExit(f"{options.tests}: no {', '.join(missing)}")
    if tests.get("dirty") and not options.dirty:
        raise SystemExit(f"{options.tests}: of a tree with changes to {tests['commit']}")
    # A whole run ends with the offsets past 32 bits, which no part has.
    if "64-bit offsets" not in tests["ops"]:
        raise SystemExit(f"{options.tests}: a part of the cases only")
    result = {key: tests[key] for key in KEYS if key != "ops"}
    result["date"] = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    if tests.get("dirty"):
        result["dirty"] = True
    summaries = options.sanitizer or options.tests.with_name("sanitizer.txt")
    if options.sanitizer or summaries.is_file():
        result["sanitizers"] = sanitizer_summaries(summaries.read_text(encoding="utf-8"))
    if options.program:
        logs = dict(item.split("=", 1) for item in options.program)
        result["programs"] = {name: program_counts(pathlib.Path(log).read_text(encoding="utf-8")) for name, log in logs.items()}
    result["ops"] = tests["ops"]
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"{options.out}: {result['passed']} passed, {result['failed']} failed, of {result['cases']} cases; tools/bench_report.py next")


if __name__ == "__main__":
    sys.exit(main())
