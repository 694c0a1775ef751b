#!/usr/bin/env python3
"""Fails where docs/public_faults.md names a test that does not exist: tools/check_test_names.py

Names in back quotes in its last column: `Suite.Name` of GoogleTest, `test_file.py: test_name` of tests/cli.
"""

import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parent.parent
known = set()
for source in sorted((root / "tests").rglob("*.cpp")):
    found = re.findall(r"^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", source.read_text(encoding="utf-8"), re.MULTILINE)
    known.update(".".join(name) for name in found)
for source in sorted((root / "tests/cli").glob("test_*.py")):
    found = re.findall(r"^    def (test_\w+)\(", source.read_text(encoding="utf-8"), re.MULTILINE)
    known.update(f"{source.name}: {name}" for name in found)

named, missing = 0, []
for row in (root / "docs/public_faults.md").read_text(encoding="utf-8").splitlines():
    cells = [cell for cell in row.split(" | ") if row.startswith("| ")]
    for name in re.findall(r"`([^`]+)`", cells[-1]) if len(cells) == 3 else []:
        named += 1
        if name not in known:
            missing.append(f"docs/public_faults.md: there is no test {name}")
print("\n".join(missing + [f"check_test_names: {named} names, {len(missing)} missing"]))
sys.exit(1 if missing or named == 0 else 0)
