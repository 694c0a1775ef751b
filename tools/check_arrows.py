#!/usr/bin/env python3
"""Reads the includes under moebius/ and fails on an arrow that the architecture does not allow.

    tools/check_arrows.py [--root DIR]      checks the tree
    tools/check_arrows.py --self-test       plants forbidden includes in a scratch tree; each must be found

Checked: which room includes which; that an own header is named by its path from the root; where headers of other
libraries stand (.cpp and .cu of their rooms only); that operations do not include each other in a circle; that the rooms
of CMakeLists.txt depend on each other as the table here says.
"""

import argparse
import pathlib
import re
import sys
import tempfile

# room: the rooms that it may include, with all that is below them. docs/architecture of it: CONTRIBUTING.md.
ROOMS = {
    "base": [],
    "config": ["base"],
    "data": ["config"],
    "ptx": [],
    "runtime": ["base"],
    "tensor": ["runtime"],
    "ops": ["tensor"],  # .cu files also ptx
    "comm": ["tensor"],
    "precision": ["ops"],
    "nn": ["precision", "comm"],
    "parallel": ["nn"],
    "checkpoint": ["comm"],
    "models": ["nn", "config", "checkpoint"],
    "eval": ["models", "parallel", "data"],
    "train": ["eval"],
    "python": ["models"],
    "cli": ["train"],
}

ANY_ABOVE_BASE = [room for room in ROOMS if room not in ("base", "ptx")]

# Header of another library (prefix): rooms whose .cpp and .cu files may include it.
LIBRARIES = {
    "yaml-cpp/": ["config"],
    "nlohmann/": ["config", "data", "checkpoint", "models", "train", "cli"],
    "simdjson": ["data"],
    "fmt/": ANY_ABOVE_BASE,
    "CLI/": ["cli"],
    "htslib/": ["data"],
    "arrow/": ["data"],
    "parquet/": ["data"],
    "xxhash.h": ["base"],
    "mpi.h": ["comm"],
    "nccl": ["comm"],
    "cublas": ["ops"],
    "cudnn": ["ops"],
    "nvrtc": ["ops"],
    "cub/": ["ops"],
    "cutlass/": ["ops"],
    "cute/": ["ops"],
    "oneapi/dnnl/": ["ops"],
    "dnnl": ["ops"],
    "pybind11/": ["python"],
    "nanobind/": ["python"],
}

# CUDA's own headers: where device code or handles live. Never in data/ or config/.
CUDA = re.compile(r"^(cuda|cooperative_groups|nvtx3/|mma\.h$|driver_types\.h$|vector_types\.h$)")
CUDA_ROOMS = ["ptx", "runtime", "tensor", "ops", "comm", "python"]

STANDARD = set(
    """
    algorithm any array atomic barrier bit bitset cassert cctype cerrno cfenv cfloat charconv chrono cinttypes climits
    clocale cmath codecvt compare complex concepts condition_variable coroutine csetjmp csignal cstdarg cstddef cstdint
    cstdio cstdlib cstring ctime cuchar cwchar cwctype deque exception execution filesystem format forward_list fstream
    functional future initializer_list iomanip ios iosfwd iostream istream iterator latch limits list locale map memory
    memory_resource mutex new numbers numeric optional ostream queue random ranges ratio regex scoped_allocator semaphore
    set shared_mutex source_location span sstream stack stdexcept stop_token streambuf string string_view strstream
    syncstream system_error thread tuple type_traits typeindex typeinfo unordered_map unordered_set utility valarray
    variant vector version
    cpuid.h dirent.h dlfcn.h errno.h fcntl.h fenv.h float.h glob.h immintrin.h limits.h linux/perf_event.h poll.h pthread.h
    pwd.h sanitizer/asan_interface.h sched.h signal.h stdint.h stdio.h stdlib.h string.h sys/file.h sys/ioctl.h sys/mman.h
    sys/auxv.h sys/random.h
    sys/resource.h sys/stat.h sys/statvfs.h sys/sysinfo.h sys/syscall.h sys/time.h sys/types.h sys/uio.h sys/utsname.h
    sys/wait.h termios.h time.h unistd.h x86intrin.h cxxabi.h execinfo.h
    """.split()
)

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SOURCES = {".h", ".cpp", ".cu", ".cuh"}


def below(room, table=ROOMS):
    """All rooms that `room` may include, itself among them."""
    found, open_rooms = set(), [room]
    while open_rooms:
        next_room = open_rooms.pop()
        if next_room not in found:
            found.add(next_room)
            open_rooms += table[next_room]
    return found


def includes(path):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1), match.group(2)


def check_own(path, room, header, root):
    """An include of the project's own header: the complaint, or None."""
    parts = header.split("/")
    if parts[0] != "moebius":
        return f'"{header}" is not named by its path from the root (moebius/...)'
    target = parts[1]
    if target not in ROOMS:
        return f"{header}: there is no room {target}/"
    if not (root / header).is_file():
        return f"{header} does not exist"
    allowed = below(room)
    if path.suffix in (".cu", ".cuh") and room == "ops":
        allowed = allowed | {"ptx"}
    if target not in allowed:
        return f"{room}/ may not include {target}/ (allowed: {', '.join(sorted(allowed))})"
    return None


def check_foreign(path, room, header):
    """An include of somebody else's header: the complaint, or None."""
    if header in STANDARD:
        return None if room != "ptx" else f"ptx/ includes CUDA's own headers only, not <{header}>"
    if CUDA.match(header):
        return None if room in CUDA_ROOMS else f"{room}/ may not include CUDA's <{header}>"
    for prefix, rooms in LIBRARIES.items():
        if header.startswith(prefix):
            if path.suffix not in (".cpp", ".cu"):
                return f"<{header}> belongs in a .cpp or .cu file, not in a header"
            if room not in rooms:
                return f"<{header}> may stand in {', '.join(rooms)} only, not in {room}/"
            return None
    return f"<{header}> is unknown here: add it to LIBRARIES or STANDARD of tools/check_arrows.py"


def op_of(header):
    """moebius/ops/<op>/... -> <op>; None for what the operations share."""
    parts = header.split("/")
    return parts[2] if parts[:2] == ["moebius", "ops"] and len(parts) > 3 else None


def find_circle(edges):
    """A circle of operations that include each other, as a list; empty if there is none."""
    done, path = set(), []

    def visit(op):
        if op in path:
            return path[path.index(op) :] + [op]
        if op in done:
            return []
        path.append(op)
        for target in sorted(edges.get(op, ())):
            circle = visit(target)
            if circle:
                return circle
        path.pop()
        done.add(op)
        return []

    for op in sorted(edges):
        circle = visit(op)
        if circle:
            return circle
    return []


def check_cmake(root):
    path = root / "CMakeLists.txt"
    if not path.is_file():
        return []
    rooms = {}
    for name, rest in re.findall(r"^moebius_room\((\w+)([^)]*)\)", path.read_text(encoding="utf-8"), re.M):
        deps = re.search(r"DEPS((?:\s+[a-z_]+)+)", rest)
        rooms[name] = deps.group(1).split() if deps else []
    problems = []
    for name, deps in rooms.items():
        if name not in ROOMS:
            problems.append(f"CMakeLists.txt: room {name} is not in the table of tools/check_arrows.py")
        elif set(deps) - below(name):
            problems.append(f"CMakeLists.txt: room {name} may not depend on {', '.join(sorted(set(deps) - below(name)))}")
    return problems


def check_tree(root):
    """(number of files read, complaints)"""
    problems, op_edges, count = check_cmake(root), {}, 0
    for path in sorted((root / "moebius").rglob("*")):
        if path.suffix not in SOURCES or not path.is_file():
            continue
        count += 1
        name = path.relative_to(root).as_posix()
        room = name.split("/")[1]
        if room not in ROOMS:
            problems.append(f"{name}: there is no room {room}/ in the table of tools/check_arrows.py")
            continue
        if room in ("config", "data") and path.suffix in (".cu", ".cuh"):
            problems.append(f"{name}: no CUDA in {room}/")
        own_op = op_of(name)
        for line, kind, header in includes(path):
            own = kind == '"' or header.startswith("moebius/")
            problem = check_own(path, room, header, root) if own else check_foreign(path, room, header)
            if problem:
                problems.append(f"{name}:{line}: {problem}")
            elif own and own_op and op_of(header) not in (None, own_op):
                op_edges.setdefault(own_op, set()).add(op_of(header))
    circle = find_circle(op_edges)
    if circle:
        problems.append("operations include each other in a circle: " + " -> ".join(circle))
    return count, problems


# file, what it includes, part of the complaint (None: allowed)
PLANTED = [
    ("moebius/base/error.h", "<string>", None),
    ("moebius/tensor/view.h", '"moebius/base/error.h"', None),
    ("moebius/ops/gemm/gemm.h", '"moebius/tensor/view.h"', None),
    ("moebius/ops/rows/rows.cpp", '"moebius/ops/gemm/gemm.h"', None),
    ("moebius/config/parse.cpp", "<yaml-cpp/yaml.h>", None),
    ("moebius/cli/main.cpp", '"moebius/tensor/view.h"', None),
    ("moebius/ops/gemm/sm90.cu", '"moebius/ptx/mma.h"', None),
    ("moebius/ptx/mma.h", "<cuda_bf16.h>", None),
    ("moebius/base/up.h", '"moebius/tensor/view.h"', "base/ may not include tensor/"),
    ("moebius/data/up.cpp", '"moebius/tensor/view.h"', "data/ may not include tensor/"),
    ("moebius/nn/up.cpp", '"moebius/cli/main.h"', "does not exist"),
    ("moebius/checkpoint/side.cpp", '"moebius/ops/gemm/gemm.h"', "checkpoint/ may not include ops/"),
    ("moebius/ops/gemm/gemm.cpp", '"gemm.h"', "path from the root"),
    ("moebius/ops/gemm/cpu.cpp", '"moebius/ptx/mma.h"', "ops/ may not include ptx/"),
    ("moebius/config/parse.h", "<yaml-cpp/yaml.h>", "not in a header"),
    ("moebius/nn/json.cpp", "<nlohmann/json.hpp>", "not in nn/"),
    ("moebius/base/format.cpp", "<fmt/format.h>", "not in base/"),
    ("moebius/data/device.cpp", "<cuda_runtime.h>", "data/ may not include CUDA"),
    ("moebius/train/other.cpp", "<boost/any.hpp>", "is unknown here"),
    ("moebius/attic/old.cpp", "<vector>", "no room attic/"),
]


def self_test():
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)

        def plant(name, header):
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"#pragma once\n#include {header}\n", encoding="utf-8")
            return path

        for name, header, _ in [row for row in PLANTED if row[2] is None]:
            plant(name, header)
        count, problems = check_tree(root)
        if problems or count != sum(row[2] is None for row in PLANTED):
            failures.append(f"the clean tree: {count} files, {problems}")
        for name, header, expected in [row for row in PLANTED if row[2] is not None]:
            path = root / name
            before = path.read_text(encoding="utf-8") if path.exists() else None
            plant(name, header)
            _, problems = check_tree(root)
            if len(problems) != 1 or expected not in problems[0] or not problems[0].startswith(name):
                failures.append(f"{name} with {header}: expected one complaint '{expected}', got {problems}")
            path.write_text(before, encoding="utf-8") if before is not None else path.unlink()
        plant("moebius/ops/rows/rows.h", '"moebius/ops/gemm/gemm.h"')
        plant("moebius/ops/gemm/any.cpp", '"moebius/ops/rows/rows.h"')
        _, problems = check_tree(root)
        if len(problems) != 1 or "gemm -> rows -> gemm" not in problems[0]:
            failures.append(f"a circle of operations: got {problems}")
        (root / "moebius/ops/gemm/any.cpp").unlink()
        (root / "CMakeLists.txt").write_text("moebius_room(data DEPS config ops LIBS fmt)\n", encoding="utf-8")
        _, problems = check_tree(root)
        if len(problems) != 1 or "room data may not depend on ops" not in problems[0]:
            failures.append(f"a forbidden dependency in CMakeLists.txt: got {problems}")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parent.parent, type=pathlib.Path)
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    if options.self_test:
        failures = self_test()
        print("\n".join(failures) if failures else f"check_arrows: self-test, {len(PLANTED) + 2} planted cases: all as expected")
        return 1 if failures else 0
    count, problems = check_tree(options.root)
    if count == 0:
        problems.append(f"no sources under {options.root}/moebius")
    for problem in problems:
        print(problem)
    print(f"check_arrows: {count} files, {len(problems)} forbidden includes")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
