// The permutation: a stable counting sort by pieces of places, as on the CPU.
#include <algorithm>

#include "moebius/ops/permute/cuda.h"
#include "moebius/ptx/dynamic_shared.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int64_t kPiece = 128;          // places of a piece at least: four turns of a warp
constexpr int64_t kMostCells = 1 << 22;  // of the table (groups, pieces), about
constexpr int64_t kSharedGroups = 4096;  // so many counts fit into a block's shared memory

__device__ int key_of(const KeySort& sort, int64_t place) {
    const int key = sort.keys[place];
    return key >= 0 && key < sort.groups ? key : 0;
}

// A warp a piece, 32 places a turn: places with the same key find each other and take their ranks behind the
// counts of the turns before. Leaves the rank inside the piece in row_of and the counts in cells (groups,
// pieces). With kShared counts are gathered in shared memory, and all of the piece's cells are written;
// otherwise in the cells, which start as zeros.
template <bool kShared>
__global__ void __launch_bounds__(kWarp)
    count_keys_any(const KeySort sort, int64_t piece_size, int64_t pieces, int32_t* cells) {
    const int lane = static_cast<int>(threadIdx.x);
    const int64_t piece = blockIdx.x, first = piece * piece_size;
    const int64_t end = first + piece_size < sort.count ? first + piece_size : sort.count;
    auto* shared = ptx::dynamic_shared<int32_t>();
    if constexpr (kShared) {
        for (int64_t g = lane; g < sort.groups; g += kWarp) shared[g] = 0;
        __syncwarp();
    }
    for (int64_t base = first; base < end; base += kWarp) {
        const int64_t place = base + lane;
        const int key = place < end ? key_of(sort, place) : -1;  // lanes past the end: a key of their own
        const unsigned same = __match_any_sync(~0u, key);
        const int rank = __popc(same & ((1u << lane) - 1));
        const int64_t group = key >= 0 ? key : 0;
        int32_t* count = kShared ? shared + group : cells + group * pieces + piece;
        const int before = key >= 0 ? *count : 0;
        __syncwarp();
        if (key >= 0) {
            if (rank == 0) *count = before + __popc(same);
            sort.row_of[place] = before + rank;
        }
        __syncwarp();
    }
    if constexpr (kShared) {
        for (int64_t g = lane; g < sort.groups; g += kWarp) cells[g * pieces + piece] = shared[g];
    }
}

__device__ int inclusive_scan(int value) {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
        const int before = __shfl_up_sync(~0u, value, step);
        if (lane >= step) value += before;
    }
    return value;
}

constexpr int kScanWarps = 4;

// A warp a group: counts of the pieces become what the group's pieces before hold; their sum is its size.
__global__ void __launch_bounds__(kScanWarps* kWarp)
    scan_pieces_any(int32_t* cells, int64_t groups, int64_t pieces, int32_t* sizes) {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    const int64_t group = int64_t{blockIdx.x} * kScanWarps + threadIdx.x / kWarp;
    if (group >= groups) return;
    int32_t* row = cells + group * pieces;
    int total = 0;
    constexpr int kTurns = 4;  // loads in flight
    for (int64_t base = 0; base < pieces; base += kTurns * kWarp) {
        int count[kTurns];
#pragma unroll
        for (int i = 0; i < kTurns; ++i) {
            const int64_t piece = base + i * kWarp + lane;
            count[i] = piece < pieces ? row[piece] : 0;
        }
#pragma unroll
        for (int i = 0; i < kTurns; ++i) {
            const int64_t piece = base + i * kWarp + lane;
            const int sum = inclusive_scan(count[i]);
            if (piece < pieces) row[piece] = total + sum - count[i];
            total += __shfl_sync(~0u, sum, kWarp - 1);
        }
    }
    if (lane == 0) sizes[group] = total;
}

constexpr int kStartThreads = 1024;

// starts[g] = Σ sizes before g, by one block.
__global__ void __launch_bounds__(kStartThreads)
    scan_sizes_any(const int32_t* sizes, int64_t groups, int32_t* starts) {
    __shared__ int warps[kWarp];
    const int lane = static_cast<int>(threadIdx.x % kWarp), warp = static_cast<int>(threadIdx.x / kWarp);
    int total = 0;
    for (int64_t base = 0; base < groups; base += kStartThreads) {
        const int64_t group = base + threadIdx.x;
        const int size = group < groups ? sizes[group] : 0;
        const int sum = inclusive_scan(size);
        if (lane == kWarp - 1) warps[warp] = sum;
        __syncthreads();
        if (warp == 0) warps[lane] = inclusive_scan(warps[lane]);
        __syncthreads();
        const int before = total + (warp > 0 ? warps[warp - 1] : 0);
        if (group < groups) starts[group] = before + sum - size;
        total += warps[kWarp - 1];
        __syncthreads();  // all have read `warps`
    }
    if (threadIdx.x == 0) starts[groups] = total;
}

constexpr int kPlaceThreads = 256;

__global__ void __launch_bounds__(kPlaceThreads)
    place_keys_any(const KeySort sort, int64_t piece_size, int64_t pieces, const int32_t* cells) {
    const int64_t place = int64_t{blockIdx.x} * kPlaceThreads + threadIdx.x;
    if (place >= sort.count) return;
    const int key = key_of(sort, place);
    const int row = sort.starts[key] + cells[key * pieces + place / piece_size] + sort.row_of[place];
    sort.row_of[place] = row;
    sort.source[row] = static_cast<int32_t>(place);
}

}  // namespace

void sort_by_key(const KeySort& sort, const Exec& exec) {
    const int64_t most = std::clamp<int64_t>(kMostCells / std::max<int64_t>(sort.groups, 1), 64, 1 << 14);
    const int64_t size = round_up(std::max(kPiece, ceil_div(sort.count, most)), kWarp);
    const int64_t pieces = std::max<int64_t>(1, ceil_div(sort.count, size));
    const auto bytes = static_cast<size_t>(pieces * sort.groups) * sizeof(int32_t);
    const Scratch scratch("permutation counts", bytes, exec);
    auto* cells = scratch.as<int32_t>();
    const dim3 grid = grid_for(pieces, 1);
    if (sort.groups <= kSharedGroups) {
        launch("permutation counts", count_keys_any<true>,
               {grid, kWarp, static_cast<size_t>(sort.groups) * sizeof(int32_t)}, exec, sort, size, pieces,
               cells);
    } else {
        cuda_check(cudaMemsetAsync(cells, 0, bytes, cuda_stream(exec)), "permutation counts");
        launch("permutation counts", count_keys_any<false>, {grid, kWarp}, exec, sort, size, pieces, cells);
    }
    launch("permutation pieces", scan_pieces_any, {grid_for(sort.groups, kScanWarps), kScanWarps * kWarp},
           exec, cells, sort.groups, pieces, sort.sizes);
    launch("permutation starts", scan_sizes_any, {1, kStartThreads}, exec, sort.sizes, sort.groups,
           sort.starts);
    launch("permutation places", place_keys_any, {grid_for(sort.count, kPlaceThreads), kPlaceThreads}, exec,
           sort, size, pieces, cells);
}

void permutation(const PermutationArgs& args, const Exec& exec) {
    const int64_t groups = args.split_sizes.numel();
    const Scratch starts("permutation starts", static_cast<size_t>(groups + 1) * sizeof(int32_t), exec);
    sort_by_key({.keys = args.topk_indices.as<int32_t>(),
                 .count = args.topk_indices.numel(),
                 .groups = groups,
                 .row_of = args.row_of.as<int32_t>(),
                 .source = args.source.as<int32_t>(),
                 .sizes = args.split_sizes.as<int32_t>(),
                 .starts = starts.as<int32_t>()},
                exec);
}

}  // namespace moebius::ops::cuda
