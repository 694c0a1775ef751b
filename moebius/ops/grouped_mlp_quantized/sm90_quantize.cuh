// The finishing epilogue of the gate-up product of FP8 codes: SwiGLU, the routing scale and the activation's
// quantization in both directions, by three warps beside the loader while the next tile is multiplied.
//
// A tile is 128 rows of an expert by 128 columns of the activation, so that a block of 128 along a row and
// one of 128 down a column both lie in it: the two warpgroups' sums are its upper and lower 64 rows, columns
// 0 … 127 the gates, 128 … 255 the ups. First by rows: C, the activation and its codes along the row, while
// the columns' largest magnitudes are found; then by columns: codes that lie transposed, the rows that pad an
// expert's last block zeros. With an expert's one scale, which is known before, nothing has to be found for
// the codes; the largest magnitude is found for whoever makes the next step's scale of it. With the scale of
// the expert's own amax, which the last tile alone completes, the activation is left in bf16 for another
// kernel to make codes of.
#pragma once

#include "moebius/ops/grouped_gemm_quantized/sm90_product.cuh"
#include "moebius/ops/grouped_mlp/sm90_matrix.cuh"
#include "moebius/ops/quantize/any_tiles.cuh"
#include "moebius/ptx/float8.h"
#include "moebius/ptx/glu.h"

namespace moebius::ops::sm90::quantized {

// The activation's scales: of blocks of 128; of whole tensors, given; of whole tensors, from the amax.
enum class ActivationScales { Blocks, Given, Amax };

template <bool kClamped, ActivationScales kScales>
struct QuantizeActivation : PlainEpilogue {
    static constexpr bool kFinishes = true;
    static constexpr bool kBlocks = kScales == ActivationScales::Blocks;
    static constexpr bool kGiven = kScales == ActivationScales::Given;
    static constexpr bool kCodes = kScales != ActivationScales::Amax;
    static constexpr int kLoaderRegisters = 72, kGroupRegisters = 216;
    static constexpr int kBarrier = 4;  // of the finishing warps; the product has 1 … 3

    struct Args {
        sm90::Matrix gate, up;  // halves of C
        uint8_t *row, *column;  // codes (capacity, columns); (columns, padded rows), null: not asked for
        float *row_scale, *column_scale;  // (columns / 128, row_scales); (padded rows / 128, columns)
        int64_t columns, padded, row_scales;
        const float* scales;  // (capacity), null: 1
        float epsilon;
        cuda::tiles::Quantize given;  // kGiven: each expert's scale or amax
        sm90::Matrix activation;      // not kCodes: (capacity, columns)
        unsigned* observed;           // not kBlocks: each expert's largest magnitude, null: not asked for
        ptx::GluConstants constants;
    };
    // What the warps know of a tile.
    struct Tile {
        int warp, lane;
        int row, rows, column;  // the first row; how many exist, at most 128; the first column
        int64_t row_block;      // blocks of 128 rows before this one, of all experts
        uint32_t most;          // in shared memory: largest magnitudes of the columns, 256 bytes a warp
        uint32_t staging;       // the first group's
        float scale;            // kGiven
    };

    __device__ static ptx::BlockScale scale_of(const Args& args, float amax) {
        return ptx::power_of_two_scale(amax < args.epsilon ? args.epsilon : amax, false);
    }

    // Where eight columns of a row's activation wait for the second pass, in the gates' place. A quarter
    // warp of that reads rows 16·q + n of equal n: they lie in different banks.
    __device__ static uint32_t place_of(uint32_t staging, int row, int chunk) {
        const int turn = row / 16 * 2 + row % 2;
        return staging + static_cast<uint32_t>(chunk / 8) * kBoxBytes + static_cast<uint32_t>(row) * 128 +
               static_cast<uint32_t>((chunk % 8) ^ turn) * 16;
    }

    // By rows, half a warp each. Returns the largest magnitude of the lane's pairs, not of kBlocks.
    __device__ static uint32_t write_rows(const Args& args, const Tile& tile) {
        const int chunk = tile.lane % 16, column = tile.column + 8 * chunk;
        const uint32_t box = static_cast<uint32_t>(chunk / 8) * kBoxBytes;
        uint32_t most[4] = {};
        [[maybe_unused]] uint32_t most_of_all = 0;
        const auto row_scale = [&](int row) {
            return row >= tile.rows         ? 0.0f
                   : args.scales == nullptr ? 1.0f
                                            : __ldg(args.scales + tile.row + row);
        };
        float ahead = row_scale(2 * tile.warp + tile.lane / 16);
        const int staged = tile.rows <= kGroupRows ? kGroupRows : kTileRows;
#pragma unroll 1
        for (int first = 2 * tile.warp; first < staged; first += 2 * kFinishers) {
            const int row = first + tile.lane / 16, inner = row % kGroupRows;  // of the tile, of the group
            const bool exists = row < tile.rows;
            const uint32_t staging = tile.staging + static_cast<uint32_t>(first / kGroupRows) * kStagingBytes;
            const uint32_t from = staging + box + static_cast<uint32_t>(inner) * 128 +
                                  static_cast<uint32_t>((chunk % 8) ^ (inner % 8)) * 16;
            const float scale = ahead;
            ahead = row_scale(row + 2 * kFinishers);
            const sm90::Eight gate = ptx::load_shared(from), up = ptx::load_shared(from + 2 * kBoxBytes);
            if constexpr (kCodes) __syncwarp();  // the row's gates have been read
            float sigmoids[8];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                sigmoids[2 * i] =
                    ptx::sigmoid_argument<kClamped>(ptx::low_bf16(gate.pairs[i]), args.constants);
                sigmoids[2 * i + 1] =
                    ptx::sigmoid_argument<kClamped>(ptx::high_bf16(gate.pairs[i]), args.constants);
            }
            ptx::sigmoids(sigmoids);
            sm90::Eight activation;
            uint32_t largest = 0;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const uint32_t g = gate.pairs[i], u = up.pairs[i];
                const float low =
                    ptx::glu_forward(ptx::glu_pair_of<kClamped>(sigmoids[2 * i], ptx::low_bf16(g),
                                                                ptx::low_bf16(u), args.constants),
                                     scale);
                const float high =
                    ptx::glu_forward(ptx::glu_pair_of<kClamped>(sigmoids[2 * i + 1], ptx::high_bf16(g),
                                                                ptx::high_bf16(u), args.constants),
                                     scale);
                activation.pairs[i] = exists ? ptx::pack_bf16(low, high) : 0u;
                const uint32_t magnitude = activation.pairs[i] & 0x7FFF7FFFu;
                largest = ptx::max_bf16(largest, magnitude);
                if constexpr (kBlocks) most[i] = ptx::max_bf16(most[i], magnitude);
            }
            if constexpr (kCodes) {
                ptx::store_shared(place_of(staging, inner, chunk),
                                  uint4{activation.pairs[0], activation.pairs[1], activation.pairs[2],
                                        activation.pairs[3]});
            }
            ptx::BlockScale own;
            if constexpr (kBlocks) {
#pragma unroll
                for (int step = 8; step > 0; step /= 2)
                    largest = ptx::max_bf16(largest, __shfl_xor_sync(~0u, largest, step));
                own = scale_of(args, fmaxf(ptx::low_bf16(largest), ptx::high_bf16(largest)));
            } else {
                if constexpr (kGiven) own.scale = tile.scale;
                most_of_all = ptx::max_bf16(most_of_all, largest);
            }
            if (!exists) continue;
            gate.store(args.gate.at(tile.row + row, column));
            up.store(args.up.at(tile.row + row, column));
            if constexpr (kCodes) {
                uint32_t pairs[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) pairs[i] = code_pair(activation.pairs[i], own.scale);
                *reinterpret_cast<uint2*>(args.row + (tile.row + row) * args.columns + column) = {
                    pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16};
                if (kBlocks && chunk == 0)
                    args.row_scale[tile.column / 128 * args.row_scales + tile.row + row] = own.inverse;
            } else {
                activation.store(args.activation.at(tile.row + row, column));
            }
        }
        if constexpr (kBlocks) {
#pragma unroll
            for (int i = 0; i < 4; ++i) most[i] = ptx::max_bf16(most[i], __shfl_xor_sync(~0u, most[i], 16));
            if (tile.lane < 16) {
                ptx::store_shared(tile.most + static_cast<uint32_t>(tile.warp * 256 + chunk * 16),
                                  uint4{most[0], most[1], most[2], most[3]});
            }
        }
        return most_of_all;
    }

    __device__ static uint32_t code_pair(uint32_t pair, float scale) {
        return ptx::E4M3::encode(__fmul_rn(ptx::low_bf16(pair), scale),
                                 __fmul_rn(ptx::high_bf16(pair), scale));
    }

    // By columns, eight a warp: a lane has column lane / 4 of these, rows 16·(lane % 4) … of either group.
    __device__ static void write_columns(const Args& args, const Tile& tile) {
        const int part = tile.lane % 4;
        for (int chunk = tile.warp; chunk < 16; chunk += kFinishers) {
            const int inner = 8 * chunk + tile.lane / 4, column = tile.column + inner;
            ptx::BlockScale own;
            if constexpr (kGiven) {
                own.scale = tile.scale;
            } else {
                float amax = 0.0f;
#pragma unroll
                for (int warp = 0; warp < kFinishers; ++warp) {
                    const uint32_t pair =
                        ptx::load_shared_word(tile.most + static_cast<uint32_t>(warp * 256 + inner / 2 * 4));
                    amax = fmaxf(amax, inner % 2 == 0 ? ptx::low_bf16(pair) : ptx::high_bf16(pair));
                }
                own = scale_of(args, amax);
                if (part == 0) args.column_scale[tile.row_block * args.columns + column] = own.inverse;
            }
            uint8_t* to = args.column + column * args.padded + tile.row_block * 128 + 16 * part;
#pragma unroll
            for (int group = 0; group < kGroups; ++group) {
                uint32_t words[4] = {};
                const uint32_t staging = tile.staging + group * kStagingBytes;
                if (group == 0 || tile.rows > kGroupRows) {
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        // Of matrix m, row 2·q + t is row 16·q + 2·m + t of the group.
                        const int matrix = 4 * half + tile.lane / 8;
                        const int row = tile.lane % 8 / 2 * 16 + 2 * matrix + tile.lane % 2;
                        uint32_t pairs[4];
                        ptx::load_matrices_transposed(place_of(staging, row, chunk), pairs[0], pairs[1],
                                                      pairs[2], pairs[3]);
                        words[2 * half] = code_pair(pairs[0], own.scale) | code_pair(pairs[1], own.scale)
                                                                               << 16;
                        words[2 * half + 1] = code_pair(pairs[2], own.scale) | code_pair(pairs[3], own.scale)
                                                                                   << 16;
                    }
                }
                *reinterpret_cast<uint4*>(to + group * kGroupRows) =
                    uint4{words[0], words[1], words[2], words[3]};
            }
        }
    }

    // The scales beside the codes, also of experts without rows. By one warp of the first block.
    __device__ static void store_given_scales(const Args& args, int experts, int lane) {
        for (int expert = lane; expert < experts; expert += 32) {
            const float inverse = cuda::tiles::scale_of_expert(args.given, expert).inverse;
            args.row_scale[expert] = inverse;
            if (args.column != nullptr) args.column_scale[expert] = inverse;
        }
    }
    // By a warp. Magnitudes are ordered as their bits are.
    __device__ static void observe(const Args& args, int expert, int lane, uint32_t most) {
        if (args.observed == nullptr) return;
#pragma unroll
        for (int step = 16; step > 0; step /= 2) most = ptx::max_bf16(most, __shfl_xor_sync(~0u, most, step));
        const float amax = fmaxf(ptx::low_bf16(most), ptx::high_bf16(most));
        if (lane == 0) atomicMax(args.observed + expert, __float_as_uint(amax));
    }

    // A warp of kFinishers.
    __device__ static void finish_tiles(const ProductArgs& product, const Args& args,
                                        const detail::Shared& shared, int warp) {
        TileWalk walk(shared.row_ends, product.plan, static_cast<int>(blockIdx.x),
                      static_cast<int>(gridDim.x));
        Tile tile;
        tile.warp = warp;
        tile.lane = static_cast<int>(threadIdx.x % 32);
        tile.staging = shared.staging(0);
        uint32_t parities = 0, turn = 0;  // parities: a bit a group
        int expert = 0, begin = 0;  // whose blocks have been counted, and where the next one's rows begin
        int64_t row_blocks = 0;
        if (kGiven && blockIdx.x == 0 && warp == 0) store_given_scales(args, product.plan.experts, tile.lane);
        for (TileUnit unit; walk.next(unit);) {
            while (expert < unit.expert) {
                const int end = shared.row_ends[expert];
                row_blocks += (end - begin + kTileRows - 1) / kTileRows;
                begin = end;
                expert += product.plan.expert_step;
            }
            tile.row = unit.row_begin + unit.row_unit * kTileRows;
            tile.rows = min(kTileRows, unit.row_end - tile.row);
            tile.column = unit.column_unit * kHalfColumns;
            tile.row_block = row_blocks + unit.row_unit;
            if constexpr (kGiven) tile.scale = cuda::tiles::scale_of_expert(args.given, unit.expert).scale;
            tile.most = shared.base + kFinishingAt + turn * (kFinishingBytes / 2);
            turn ^= 1;  // a warp may begin the next tile while another reads this one's
            const int groups = tile.rows <= kGroupRows ? 1 : kGroups;
            for (int group = 0; group < groups; ++group) {
                ptx::barrier_wait(shared.staged(group), (parities >> group) & 1);  // partner: the warpgroup
                parities ^= 1u << group;
            }
            const uint32_t most = write_rows(args, tile);
            if constexpr (!kBlocks) observe(args, unit.expert, tile.lane, most);
            if constexpr (kCodes) {
                ptx::named_barrier_wait(kBarrier, kFinishers * 32);  // partner: the finishing warps
                if (args.column != nullptr) write_columns(args, tile);
            }
            __syncwarp();
            if (tile.lane == 0) {
                for (int group = 0; group < groups; ++group)
                    ptx::barrier_arrive(shared.taken(group));  // partner: the warpgroup
            }
        }
    }
};

}  // namespace moebius::ops::sm90::quantized
