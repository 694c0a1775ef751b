// How attention's forward on Hopper cuts its work. The same code runs in the kernel and in a test on the CPU.
#pragma once

#ifdef __CUDACC__
#define MOEBIUS_UNITS_INLINE __host__ __device__ __forceinline__
#else
#define MOEBIUS_UNITS_INLINE inline
#endif

namespace moebius::ops::sm90 {

// Tiles of keys, counted from the sequence's first: those that a warpgroup or a block goes through,
// downwards.
struct KeyRange {
    int begin, end;
};

// What one warpgroup computes: 64 queries of a sequence under one head. The units of a sequence and kv head
// are counted from the last queries to the first, the heads that share keys side by side, so that a block's
// warpgroups, which have units in a row, read the same keys or nearly.
struct UnitPlan {
    static constexpr int kQueries = 64, kKeys = 128;

    int length;  // of the sequence
    int window;  // 0: none
    int group;   // query heads that read a kv head

    MOEBIUS_UNITS_INLINE int units() const { return (length + kQueries - 1) / kQueries * group; }
    MOEBIUS_UNITS_INLINE int first_query(int unit) const {
        return ((length + kQueries - 1) / kQueries - 1 - unit / group) * kQueries;
    }
    MOEBIUS_UNITS_INLINE int head(int unit) const { return unit % group; }

    // Tiles with a key that a query of the unit sees.
    MOEBIUS_UNITS_INLINE KeyRange keys(int unit) const {
        const int first = first_query(unit), past = first + kQueries < length ? first + kQueries : length;
        const int hidden = window > 0 && window <= first ? first - window + 1 : 0;
        return {hidden / kKeys, (past + kKeys - 1) / kKeys};
    }
    // Of all units [first, first + count) that there are.
    MOEBIUS_UNITS_INLINE KeyRange keys_of_all(int first, int count) const {
        const int last = first + count < units() ? first + count - 1 : units() - 1;
        return {keys(last).begin, keys(first).end};
    }
};

}  // namespace moebius::ops::sm90

#undef MOEBIUS_UNITS_INLINE
