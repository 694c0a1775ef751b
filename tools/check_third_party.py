#!/usr/bin/env python3
"""Fails on a third-party package that the tree uses and THIRD_PARTY.md does not list.

    tools/check_third_party.py [--root DIR] [--program FILE]
    tools/check_third_party.py --self-test

Looked at: find_package, pkg_check_modules, find_library, find_path of all CMake files and static libraries by name; the
packages of tools/packages.txt; pip requirements (requirements*.txt, pip install and download lines of scripts); imports
of Python files; shared libraries that sources open by name; folders of bundled sources (third_party/, external/, vendor/).
With --program: the shared libraries that it needs.
A name must stand in backticks in the table's last column.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

COLUMNS = 6
HOW = {"linked", "header", "data", "no", "shared, not shipped"}
# A Python package is imported under one name and installed under another.
IMPORTED_AS = {"yaml": "pyyaml", "pysam": "pysam"}


def files(root, *patterns):
    for pattern in patterns:
        for path in sorted(root.rglob(pattern)):
            parts = path.relative_to(root).parts
            if parts[0] not in ("build", ".git", "runs") and path.is_file():
                yield path


def listed(root):
    """(names in backticks of the tables' last column, complaints about rows)"""
    names, problems = set(), []
    for number, line in enumerate((root / "THIRD_PARTY.md").read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("|") or line.startswith(("|---", "| Name |")):
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != COLUMNS or not all(cells):
            problems.append(f"THIRD_PARTY.md:{number}: a row has {COLUMNS} filled columns")
        elif cells[3] not in HOW:
            problems.append(f"THIRD_PARTY.md:{number}: '{cells[3]}' is none of {', '.join(sorted(HOW))}")
        else:
            names.update(re.findall(r"`([^`]+)`", cells[5]))
    return names, problems


def uncommented(text):
    return "\n".join(re.sub(r"(^|\s)#.*", "", line) for line in text.splitlines())


def used_by_cmake(root):
    for path in files(root, "CMakeLists.txt", "*.cmake", "*.cmake.in"):
        where = path.relative_to(root).as_posix()
        text = uncommented(path.read_text(encoding="utf-8"))
        for name in re.findall(r"(?:find_package|find_dependency)\(\s*([\w-]+)", text):
            if name != "Moebius":
                yield where, f"find_package({name})"
        for arguments in re.findall(r"pkg_check_modules\(([^)]*)\)", text):
            words = [word for word in arguments.split()[1:] if not word.isupper() and word != "IMPORTED_TARGET"]
            for word in words:
                yield where, f"pkg_check_modules({re.split('[<>=]', word)[0]})"
        for kind, words in re.findall(r"(find_library|find_path)\(\s*\S+\s+(?:NAMES\s+)?([^\s)]+)", text):
            if "$" not in words:
                yield where, f"{kind}({words})"
        for name in re.findall(r"moebius_static_library\(\s*\w+\s+([\w+-]+)\s*\)", text):
            yield where, f"lib{name}.a"
        for names in re.findall(r"foreach\(name ((?:\w+ ?)+)\)\s*moebius_static_library", text):
            for name in names.split():
                yield where, f"lib{name}.a"
        if re.search(r"\b(FetchContent_Declare|ExternalProject_Add)\b", text):
            yield where, "FetchContent or ExternalProject (sources from elsewhere are not fetched while building)"


def used_by_packages(root):
    path = root / "tools/packages.txt"
    if path.is_file():
        for line in uncommented(path.read_text(encoding="utf-8")).splitlines():
            if line.strip():
                yield "tools/packages.txt", line.split()[1]


def used_by_python(root):
    for path in files(root, "*requirements*.txt"):
        for line in uncommented(path.read_text(encoding="utf-8")).splitlines():
            word = re.match(r"\s*([A-Za-z0-9][\w.-]*)", line)
            if word:
                yield path.relative_to(root).as_posix(), word.group(1).lower()
    scripts = list(files(root, "*.sh", "Makefile")) + [p for p in files(root, "run") if p.parent.name == ".ci"]
    for path in scripts:
        text = uncommented(path.read_text(encoding="utf-8"))
        text = re.sub(r"\$\{?(\w+)\}?", lambda m: (re.findall(rf"^{m[1]}=(\S+)$", text, re.M) or [m[0]])[0], text)
        for arguments in re.findall(r"\bpip3? (?:install|download) ([^;&|\n]*)", text):
            for word in arguments.split():
                name = re.match(r"[\"']?([A-Za-z][\w.-]*)", word)
                if name and not word.startswith("-") and not word.endswith(".txt"):
                    yield path.relative_to(root).as_posix(), name.group(1).lower()
    own = {path.stem for path in files(root, "*.py")}
    for path in files(root, "*.py"):
        for name in re.findall(r"^\s*(?:import|from) (\w+)", path.read_text(encoding="utf-8"), re.M):
            if name not in sys.stdlib_module_names and name not in own:
                yield path.relative_to(root).as_posix(), IMPORTED_AS.get(name, name)


def used_by_sources(root):
    for path in files(root, "*.cpp", "*.cu"):
        for name in re.findall(r'"(lib[\w+-]+\.so(?:\.\d+)*)"', path.read_text(encoding="utf-8")):
            yield path.relative_to(root).as_posix(), name


def used_by_folders(root):
    for folder in ("third_party", "external", "vendor", "extern"):
        if (root / folder).is_dir():
            for path in sorted((root / folder).iterdir()):
                yield folder, path.name


def used_by_program(program):
    text = subprocess.run(["readelf", "-d", program], check=True, capture_output=True, text=True).stdout
    for name in re.findall(r"\(NEEDED\)[^\[]*\[([^\]]+)\]", text):
        yield str(program), name


def check(root, program=None):
    """(number of uses, complaints)"""
    names, problems = listed(root)
    uses = list(used_by_cmake(root)) + list(used_by_packages(root)) + list(used_by_python(root))
    uses += list(used_by_folders(root)) + list(used_by_sources(root))
    if program:
        uses += list(used_by_program(program))
    unlisted = sorted({(where, name) for where, name in uses if name not in names})
    problems += [f"{where}: {name} is not listed in THIRD_PARTY.md" for where, name in unlisted]
    return len(uses), problems


# file, text, what must be complained about (None: nothing)
PLANTED = [
    ("CMakeLists.txt", "find_package(fmt REQUIRED)\n# find_package(Commented)\n", None),
    ("CMakeLists.txt", "find_package(Boost REQUIRED)\n", "find_package(Boost)"),
    ("cmake/More.cmake", "pkg_check_modules(X REQUIRED IMPORTED_TARGET libcurl>=7)\n", "pkg_check_modules(libcurl)"),
    ("cmake/More.cmake", "find_library(NCCL NAMES nccl)\n", "find_library(nccl)"),
    ("cmake/More.cmake", "foreach(name hts curl)\n    moebius_static_library(X_${name} ${name})\n", "libcurl.a"),
    ("cmake/More.cmake", "FetchContent_Declare(json)\n", "FetchContent"),
    ("tools/packages.txt", "build libboost-dev\n", "libboost-dev"),
    ("tools/requirements.txt", "Pandas==2.0  # tables\n", "pandas"),
    ("tools/make.sh", "python3 -m pip install --quiet 'scipy>=1'\n", "scipy"),
    ("tools/get.sh", "package=polars==1.0\npip download --no-deps --dest \"$work\" \"$package\"\n", "polars"),
    ("moebius/open.cpp", 'DynamicLibrary library({"libcufile.so.0"});\n', "libcufile.so.0"),
    ("tools/plot.py", "import os\nimport matplotlib.pyplot\n", "matplotlib"),
    ("third_party/miniz/miniz.c", "\n", "miniz"),
]
SCRATCH_TABLE = """| Name | Version | Licence | In the program | Used for | Found as |
|---|---|---|---|---|---|
| fmt | 9 | MIT | header | text | `find_package(fmt)` |
| HTSlib | 1 | MIT | linked | data | `libhts.a` |
"""


def self_test():
    failures = []
    for name, text, expected in PLANTED:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "THIRD_PARTY.md").write_text(SCRATCH_TABLE, encoding="utf-8")
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
            count, problems = check(root)
            if expected is None and (problems or count == 0):
                failures.append(f"{name}: {count} uses, {problems}")
            elif expected is not None and (len(problems) != 1 or expected not in problems[0]):
                failures.append(f"{name}: expected a complaint about {expected}, got {problems}")
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "THIRD_PARTY.md").write_text(SCRATCH_TABLE + "| x | | MIT | header | y | `x` |\n", encoding="utf-8")
        if len(check(root)[1]) != 1:
            failures.append("a row without a version was not found")
        program = pathlib.Path(sys.executable).resolve()
        (root / "THIRD_PARTY.md").write_text(SCRATCH_TABLE, encoding="utf-8")
        if not any("libc.so" in problem for problem in check(root, program)[1]):
            failures.append("a shared library that a program needs was not found")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parent.parent, type=pathlib.Path)
    parser.add_argument("--program", type=pathlib.Path, help="also what this program links")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    if options.self_test:
        failures = self_test()
        print("\n".join(failures) if failures else f"check_third_party: self-test, {len(PLANTED) + 2} planted cases: all as expected")
        return 1 if failures else 0
    count, problems = check(options.root, options.program)
    for problem in problems:
        print(problem)
    print(f"check_third_party: {count} uses, {len(problems)} not listed")
    return 1 if problems or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
