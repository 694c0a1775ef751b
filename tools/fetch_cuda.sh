#!/usr/bin/env bash
# Puts a CUDA toolkit that is enough to compile and link Moebius at build/cuda_toolkit, from NVIDIA's PyPI packages, which
# are only unpacked: nvcc, the runtime, the headers of cuBLAS and CUPTI. For machines without a toolkit, CI's for example; it asks
# for no GPU and no root. Prints the path of nvcc.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96
    nvidia-cuda-cccl==13.0.85 nvidia-nvtx==13.0.85 nvidia-cublas==13.1.0.3 nvidia-cuda-cupti==13.0.85)
folder=build/cuda_toolkit
nvcc=$PWD/$folder/bin/nvcc
if [ -x "$nvcc" ]; then
    echo "$nvcc"
    exit 0
fi
mkdir -p build
work=$(mktemp -d build/cuda_toolkit.XXXXXX)
trap 'rm -rf "$work"' EXIT
echo "cuda toolkit: about 600 MB from PyPI: ${packages[*]}" >&2
if ! python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$work" "${packages[@]}" >"$work/pip.log" 2>&1; then
    tail -n 5 "$work/pip.log" >&2
    echo "cuda toolkit: not fetched (above: pip's words). Install CUDA 13.0 or later from NVIDIA and put its bin folder into" \
        "PATH, or set CUDACXX to its nvcc" >&2
    exit 1
fi
python3 - "$work" <<'PYTHON'
import pathlib
import sys
import zipfile

work = pathlib.Path(sys.argv[1])
for wheel in work.glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            # Of cuBLAS the headers: the program opens the library when it first needs it.
            if "cublas" not in wheel.name or "/include/" in name:
                archive.extract(name, work / "all")
    wheel.unlink()
PYTHON
mv "$work/all/nvidia/cu13" "$work/toolkit"
# Where CMake and nvcc look, and what pip's unpacking would have made executable.
ln -s lib "$work/toolkit/lib64"
ln -s libcudart.so.13 "$work/toolkit/lib/libcudart.so"
chmod +x "$work"/toolkit/bin/* "$work"/toolkit/nvvm/bin/*
rm -rf "$folder"
mv "$work/toolkit" "$folder"
"$nvcc" --version >/dev/null
echo "$nvcc"
