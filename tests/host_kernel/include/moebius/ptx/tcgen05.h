#pragma once

#include "moebius/ptx/mbarrier.h"

namespace moebius::ptx {

inline bool elect_lane() {
    return host_kernel::lane() == 0;
}
inline void tensor_memory_allocate(uint32_t to, uint32_t) {
    if (host_kernel::lane() == 0) std::memset(host_kernel::engines().shared + to, 0, 4);
}
inline void tensor_memory_free(uint32_t, uint32_t) {}
inline void tensor_fence_before_sync() {}
inline void tensor_fence_after_sync() {}
inline void tensor_copy_scales(uint32_t to, uint64_t from) {
    host_kernel::Engines& engines = host_kernel::engines();
    engines.multiply([=, &engines] { engines.copy_scales(to, from); });
}
inline void mx_multiply(uint32_t sums, uint64_t a, uint64_t b, uint32_t instruction, uint32_t scale_a,
                        uint32_t scale_b, bool add) {
    host_kernel::Engines& engines = host_kernel::engines();
    engines.multiply([=, &engines] { engines.product(sums, a, b, instruction, scale_a, scale_b, add); });
}
inline void tensor_commit(uint32_t barrier) {
    host_kernel::Engines& engines = host_kernel::engines();
    engines.multiply([=, &engines] { engines.arrive(barrier, 0); });
}

// Registers are filled when the thread waits, not before.
struct PendingLoad {
    uint32_t from;
    uint32_t* words;
};
inline thread_local std::vector<PendingLoad> pending_loads;
inline void tensor_load(uint32_t from, uint32_t (&words)[32]) {
    pending_loads.push_back({from, words});
}
inline void tensor_wait_load() {
    for (const PendingLoad& load : pending_loads) {
        for (uint32_t i = 0; i < 32; ++i)
            load.words[i] = host_kernel::engines().tensor_word(load.from + (threadIdx.x % 32 << 16) + i);
    }
    pending_loads.clear();
}
inline void tensor_hold(uint32_t (&)[32]) {}

}  // namespace moebius::ptx
