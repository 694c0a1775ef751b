#!/usr/bin/env python3
"""Writes tests/base/float8_table.h: what ml_dtypes and torch say of eight-bit floats, for tests/base/test_float8.cpp.

    pip install ml_dtypes torch numpy
    tools/make_float8_table.py > tests/base/float8_table.h

Both libraries decode all codes and are asked, by bisection over the bits of positive fp32 numbers, for the largest
number that rounds to each code; where they differ in a finite number, this fails.

Their semantics and ours differ where a number is too large, and these differences are asserted, not hidden:
- float8_e4m3fn: beyond 464 (the tie above 448) ml_dtypes and older versions of torch give NaN; newer versions of torch
  saturate to 448, infinities too, as we do. So the largest number that rounds to 448 is written as infinity.
- float8_e5m2: from 61440 (the tie above 57344) on both give infinity, we give 57344; likewise.
- NaN: the libraries keep a sign, and torch and ml_dtypes choose different mantissas for E5M2; we have 0x7F alone.
- float8_e8m0fnu: decoding is the same. The libraries' rounding to it is not NUMERICS' round up, so encoding is not
  taken from here.
"""

import sys

import ml_dtypes
import numpy as np
import torch

FORMATS = {
    "E4M3": (ml_dtypes.float8_e4m3fn, torch.float8_e4m3fn, 0x7E),
    "E5M2": (ml_dtypes.float8_e5m2, torch.float8_e5m2, 0x7B),
    "E8M0": (ml_dtypes.float8_e8m0fnu, torch.float8_e8m0fnu, None),
}


def floats(bits):
    return np.asarray(bits, dtype=np.uint32).view(np.float32)


def decode(name):
    """fp32 bits of all 256 codes, NaN as 0x7FC00000."""
    numpy_type, torch_type, _ = FORMATS[name]
    codes = np.arange(256, dtype=np.uint8)
    one = codes.view(numpy_type).astype(np.float32)
    other = torch.from_numpy(codes.copy()).view(torch_type).to(torch.float32).numpy()
    bits = [np.where(np.isnan(x), np.uint32(0x7FC00000), x.view(np.uint32)) for x in (one, other)]
    if name == "E8M0" and bits[1][0] != bits[0][0]:
        raise SystemExit(f"E8M0 code 0: ml_dtypes {bits[0][0]:#x}, torch {bits[1][0]:#x}")
    assert (bits[0] == bits[1]).all(), f"{name}: ml_dtypes and torch decode differently"
    return bits[0]


def encode_ml_dtypes(name, values):
    return values.astype(FORMATS[name][0]).view(np.uint8)


def encode_torch(name, values):
    return torch.from_numpy(values.copy()).to(FORMATS[name][1]).view(torch.uint8).numpy()


def thresholds(name, encode):
    """Bits of the largest fp32 number that rounds to each code from 0 to the one before the largest."""
    largest = FORMATS[name][2]
    low = np.zeros(largest, dtype=np.uint64)
    high = np.full(largest, int(np.float32(FORMATS_LARGEST[name]).view(np.uint32)), dtype=np.uint64)
    wanted = np.arange(largest)
    while (high - low > 1).any():
        middle = (low + high) // 2
        fits = encode(name, floats(middle.astype(np.uint32))) <= wanted
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return low.astype(np.uint32)


FORMATS_LARGEST = {"E4M3": 448.0, "E5M2": 57344.0}


def check_differences():
    """The differences that the table's reader has to know of are as the text above says."""
    for name, tie, beyond in (("E4M3", 464.0, {0x7E, 0x7F}), ("E5M2", 61440.0, {0x7C})):
        above = np.nextafter(np.float32(tie), np.float32(np.inf))
        largest = np.uint8(FORMATS[name][2])
        for encode in (encode_ml_dtypes, encode_torch):
            below = np.nextafter(np.float32(tie), np.float32(0))
            assert encode(name, np.array([below]))[0] == largest, (name, encode)
            assert encode(name, np.array([above]))[0] & 0x7F in beyond, (name, encode)
            nan = encode(name, np.array([np.nan], dtype=np.float32))[0] & 0x7F
            assert nan > (0x7E if name == "E4M3" else 0x7C), (name, encode)


def print_array(name, values, comment):
    print(f"// {comment}\ninline constexpr uint32_t {name}[] = {{")
    for i in range(0, len(values), 8):
        print("    " + ", ".join(f"0x{int(v):08X}" for v in values[i : i + 8]) + ",")
    print("};\n")


def main():
    check_differences()
    print(f"""// Made by tools/make_float8_table.py with ml_dtypes {ml_dtypes.__version__}, torch {torch.__version__}, \
numpy {np.__version__}; do not edit.
// Both libraries agree on every number here; where their semantics differ from Moebius' (overflow, NaN) the tool's text
// says how. All numbers are bits of fp32.
// clang-format off
#pragma once

#include <cstdint>

namespace moebius {{
""")
    for name in FORMATS:
        print_array(f"k{name}Numbers", decode(name), f"{name}: the number of each code; NaN as 0x7FC00000.")
    for name in FORMATS_LARGEST:
        one, other = (thresholds(name, encode) for encode in (encode_ml_dtypes, encode_torch))
        assert (one == other).all(), f"{name}: ml_dtypes and torch round differently"
        comment = f"{name}: the largest number that rounds to each positive code; to the last, with saturation, infinity."
        print_array(f"k{name}Largest", list(one) + [0x7F800000], comment)
    print("}  // namespace moebius")


if __name__ == "__main__":
    sys.exit(main())
