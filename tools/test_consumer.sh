#!/usr/bin/env bash
# Programs of one's own against an installed Moebius: tools/test_consumer.sh PREFIX. Configures, builds and runs
# tests/consumer, outside the source tree, so that only what was installed is found.
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=$(readlink -f "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r tests/consumer "$work/source"

cmake -S "$work/source" -B "$work/build" -G Ninja -D CMAKE_BUILD_TYPE=Release -D CMAKE_PREFIX_PATH="$prefix" \
    -D CMAKE_CXX_COMPILER_LAUNCHER=ccache
cmake --build "$work/build"
cd "$work/build"
./train_two_steps
./grouped_mlp_only

# A program with only the grouped MLP links neither yaml-cpp nor htslib, and asks CMake for neither.
if nm -C grouped_mlp_only | grep -qE ' (YAML::|bgzf_open|hts_open)'; then
    echo "consumer: grouped_mlp_only links yaml-cpp or htslib" >&2
    exit 1
fi
# A component that does not exist is refused by its name.
mkdir -p "$work/wrong"
printf '%s\n' 'cmake_minimum_required(VERSION 3.25)' 'project(wrong CXX)' \
    'find_package(Moebius REQUIRED COMPONENTS nn cellar)' >"$work/wrong/CMakeLists.txt"
if cmake -S "$work/wrong" -B "$work/wrong/build" -D CMAKE_PREFIX_PATH="$prefix" >"$work/wrong.log" 2>&1; then
    echo "consumer: find_package found a component that does not exist" >&2
    exit 1
fi
grep -q cellar "$work/wrong.log" || { cat "$work/wrong.log"; exit 1; }
echo "consumer: train_two_steps and grouped_mlp_only built against $(basename "$prefix") and ran"
