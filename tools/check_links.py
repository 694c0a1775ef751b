#!/usr/bin/env python3
"""Fails on a relative link of a Markdown page that leads nowhere: tools/check_links.py"""

import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parent.parent
count, broken = 0, []
for page in sorted(root.rglob("*.md")):
    if page.relative_to(root).parts[0] in ("build", "runs", ".git"):
        continue
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not re.match(r"[a-z]+:", target):
            count += 1
            if not (page.parent / target).exists():
                broken.append(f"{page.relative_to(root)}: {target} does not exist")
print("\n".join(broken + [f"check_links: {count} links, {len(broken)} broken"]))
sys.exit(1 if broken or count == 0 else 0)
