#pragma once

#include "moebius/ptx/mbarrier.h"

// What is left of a tensor map: bytes of three axes.
struct CUtensorMap {
    const uint8_t* data;
    int64_t columns, rows, experts;
};

namespace moebius::ptx {

inline void tma_prefetch_map(const CUtensorMap*) {}
inline void tma_load(uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int y, int z) {
    host_kernel::Engines& engines = host_kernel::engines();
    engines.copy([=, &engines] {
        engines.load_box(to, *map, x, y, z);
        engines.complete(barrier, 128 * 128);
    });
}

}  // namespace moebius::ptx
