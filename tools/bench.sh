#!/usr/bin/env bash
# Measures and writes bench/results: `make bench`, or tools/bench.sh [options of tools/bench_cpu.py]. Wants an idle machine.
# The other side's torch and transformers go into the virtual environment that tools/parity.sh also uses, once (some GB;
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu for a smaller torch). BENCH_PYTHON=/path/to/python uses a Python
# that has them already; BENCH_BUILD=FOLDER another build folder than build/cpu.
# `make bench-gpu`, or tools/bench.sh --gpu [options of tools/bench_gpu.py]: on a GPU, from build/cuda.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=cpu
if [ "${1:-}" = --gpu ]; then
    preset=cuda
    shift
fi
build=${BENCH_BUILD:-build/$preset}
if [ -n "${BENCH_PYTHON:-}" ]; then
    python=$BENCH_PYTHON
else
    python=build/parity-venv/bin/python
    stamp=build/parity-venv/requirements.txt
    if ! cmp -s tools/parity-requirements.txt "$stamp"; then
        echo "bench: installing torch and transformers into build/parity-venv (log: build/logs/bench.log)"
        mkdir -p build/logs
        python3 -m venv build/parity-venv
        if ! "$python" -m pip install --disable-pip-version-check -r tools/parity-requirements.txt >build/logs/bench.log 2>&1; then
            tail -n 15 build/logs/bench.log >&2
            echo "bench: pip failed, see above and build/logs/bench.log" >&2
            exit 1
        fi
        cp tools/parity-requirements.txt "$stamp"
    fi
fi

[ -e "$build/build.ninja" ] || cmake --preset "$preset" -B "$build"
if [ $preset = cuda ]; then
    cmake --build "$build" --target moebius moebius_bench moebius_kernel_bench moebius_torch moebius_kernel_times -j "${JOBS:-$(nproc)}"
    tools/bench_gpu.py --bin "$build/bin" --python "$python" "$@"
else
    cmake --build "$build" --target moebius moebius_bench -j "${JOBS:-$(nproc)}"
    tools/fetch_genome.sh
    tools/bench_cpu.py --build "$build" --python "$python" "$@"
fi
for word in "$@"; do
    case $word in --quick | --out | --out=*) exit 0 ;; esac
done
tools/bench_report.py
