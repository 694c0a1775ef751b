#!/usr/bin/env bash
# Puts the headers of cuDNN's frontend at build/cudnn_frontend/include, from its PyPI package, which is only unpacked:
# tools/fetch_cudnn_frontend.sh [WHEEL]. A CUDA build that finds them has attention by cuDNN (cmake/MoebiusCudnn.cmake).
set -euo pipefail
cd "$(dirname "$0")/.."

package=nvidia-cudnn-frontend==1.32.0
folder=build/cudnn_frontend
# Of the sums of all headers: wheels for different Pythons hold the same ones.
expected=106a646b280df5f76f14a0f8215a60422dae9614bf8281205d5655eba9c4d299

matches() {
    [ -d "$1/include" ] &&
        [ "$(cd "$1/include" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d' ' -f1)" = "$expected" ]
}

if matches "$folder"; then
    echo "cudnn frontend: $folder/include is there"
    exit 0
fi
mkdir -p build
work=$(mktemp -d "build/cudnn_frontend.XXXXXX")
trap 'rm -rf "$work"' EXIT
wheel=${1:-}
if [ -z "$wheel" ]; then
    echo "cudnn frontend: fetching $package by pip (12 MB)"
    if ! python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$work" "$package" >"$work/pip.log" 2>&1; then
        tail -n 5 "$work/pip.log" >&2
        echo "cudnn frontend: not fetched (above: pip's words). Hand over its wheel: tools/fetch_cudnn_frontend.sh WHEEL;" \
            "without it a CUDA build has no attention by cuDNN" >&2
        exit 1
    fi
    wheel=$(find "$work" -name '*.whl' -print -quit)
fi
python3 - "$wheel" "$work" <<'PYTHON'
import sys
import zipfile

archive = zipfile.ZipFile(sys.argv[1])
names = [n for n in archive.namelist() if n.startswith("include/") or ".dist-info/licenses/" in n]
archive.extractall(sys.argv[2], names)
PYTHON
if ! matches "$work"; then
    echo "cudnn frontend: the headers in $wheel are not those of $package that this project was tried with" \
        "(sum of sums is not $expected)" >&2
    exit 1
fi
rm -rf "$folder"
mkdir "$folder"
mv "$work/include" "$folder/include"
mv "$work"/*.dist-info/licenses "$folder/licenses"
echo "cudnn frontend: $folder/include, from $package"
