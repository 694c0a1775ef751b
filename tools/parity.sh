#!/usr/bin/env bash
# Compares the built program with Hugging Face transformers: `make parity`, or tools/parity.sh [options of parity.py].
# Makes a virtual environment under build/ and installs torch and the others from PyPI into it, once (some GB; pip's own
# variables apply, PIP_INDEX_URL or PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu for a smaller torch).
# PARITY_PYTHON=/path/to/python uses a Python that has them already, and installs nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ -n "${PARITY_PYTHON:-}" ]; then
    python=$PARITY_PYTHON
else
    python=build/parity-venv/bin/python
    stamp=build/parity-venv/requirements.txt
    if ! cmp -s tools/parity-requirements.txt "$stamp"; then
        echo "parity: installing torch, transformers and others into build/parity-venv (log: build/logs/parity.log)"
        mkdir -p build/logs
        python3 -m venv build/parity-venv
        if ! "$python" -m pip install --disable-pip-version-check -r tools/parity-requirements.txt >build/logs/parity.log 2>&1; then
            tail -n 15 build/logs/parity.log >&2
            echo "parity: pip failed, see above and build/logs/parity.log" >&2
            exit 1
        fi
        cp tools/parity-requirements.txt "$stamp"
    fi
fi
if ! "$python" -c 'import torch, transformers, tokenizers, safetensors, numpy'; then
    echo "parity: $python lacks one of the packages of tools/parity-requirements.txt" >&2
    exit 1
fi
exec "$python" tools/parity.py "$@"
