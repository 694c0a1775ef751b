#!/usr/bin/env bash
# Formats all C++ and CUDA sources, or with --check fails on one that is not formatted. clang-format 14, exactly: other
# versions format differently. Debian 12 and Ubuntu 24.04 both have the package clang-format-14.
set -euo pipefail
cd "$(dirname "$0")/.."

program=$(command -v clang-format-14 || true)
if [ -z "$program" ]; then
    program=$(command -v clang-format || true)
    if [ -z "$program" ] || ! "$program" --version | grep -q 'version 14\.'; then
        echo "format: clang-format 14 is missing (tools/setup.sh develop installs it)" >&2
        exit 1
    fi
fi
mapfile -d '' -t sources < <(find moebius tests bench -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0 | sort -z)
if [ ${#sources[@]} -eq 0 ]; then
    echo "format: no sources found" >&2
    exit 1
fi
if [ "${1:-}" = --check ]; then
    if ! printf '%s\0' "${sources[@]}" | xargs -0 -P "$(nproc)" -n 16 "$program" --dry-run -Werror; then
        echo "format: 'make format' repairs these" >&2
        exit 1
    fi
    echo "format: ${#sources[@]} files are as $("$program" --version | grep -o 'version [0-9.]*') wants them"
else
    printf '%s\0' "${sources[@]}" | xargs -0 -P "$(nproc)" -n 16 "$program" -i
    echo "format: ${#sources[@]} files"
fi
