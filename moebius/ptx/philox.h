// base/philox.h's numbers on the device: the first two words of a block.
#pragma once

#include <cuda_runtime.h>

namespace moebius::ptx {

struct PhiloxStream {
    unsigned long long key, stream;
};

// Uniform in [0, 1), 53 bits: Philox::uniform.
__device__ inline double philox_uniform(PhiloxStream random, unsigned long long index) {
    unsigned c0 = static_cast<unsigned>(index), c1 = static_cast<unsigned>(index >> 32);
    unsigned c2 = static_cast<unsigned>(random.stream), c3 = static_cast<unsigned>(random.stream >> 32);
    unsigned k0 = static_cast<unsigned>(random.key), k1 = static_cast<unsigned>(random.key >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const unsigned high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        const unsigned high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const unsigned long long bits = (static_cast<unsigned long long>(c0) << 32) | c1;
    return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

}  // namespace moebius::ptx
