// Products whose reduced dimension is the rows: weight gradients.
#include <algorithm>

#include "moebius/ops/cpu_math.h"
#include "moebius/ops/gemm/cpu_products.h"

namespace moebius::ops::cpu {
namespace {

// Tiles of the result that pieces work on: large enough that a packed operand is read seldom, small enough
// for this many pieces.
constexpr int64_t kPieces = 16;
constexpr int64_t kTileWidth = 256;

struct TileGrid {
    int64_t height, width;  // of a tile
    int64_t down, across;   // tiles
};

TileGrid tile_grid(Isa isa, int64_t m, int64_t n, int64_t outs) {
    const int64_t least_height = block_rows(isa) / 4, least_width = std::max<int64_t>(64, tile_columns(isa));
    TileGrid grid{block_rows(isa), kTileWidth, 0, 0};
    for (;;) {
        grid.down = ceil_div(m, grid.height);
        grid.across = ceil_div(n, grid.width);
        if (grid.down * grid.across * outs >= kPieces) return grid;
        if (grid.width > least_width && grid.width >= grid.height) {
            grid.width /= 2;
        } else if (grid.height > least_height) {
            grid.height /= 2;
        } else if (grid.width > least_width) {
            grid.width /= 2;
        } else {
            return grid;
        }
    }
}

void multiply_tile(Isa isa, int64_t m, int64_t n, const PackedChunk* begin, const PackedChunk* end,
                   int64_t row, int64_t rows, int64_t column, int64_t columns) {
    const int64_t left_block = left_block_floats(isa, m), right_block = right_block_floats(isa, n);
    for (const PackedChunk* chunk = begin; chunk != end; ++chunk) {
        for (int64_t p = 0; p < chunk->rows; p += kDepth) {
            const int64_t block = p / kDepth;
            const Left left{chunk->left + block * left_block, 0, panel_rows(isa) * kDepth};
            const Right right{chunk->right + block * right_block, tile_columns(isa) * kDepth};
            multiply(isa, rows, columns, std::min(kDepth, chunk->rows - p), left_at(isa, left, row, 0),
                     right_at(isa, right, 0, column), chunk->out + row * chunk->out_stride + column,
                     chunk->out_stride, chunk->accumulate || p > 0);
        }
    }
}

// Rows of a group, before they are packed.
struct Chunk {
    const DepthGroup* group;
    int64_t first, rows;  // of the group
    float* out;
    int64_t out_stride;
};

void run_wave(const DepthProducts& p, const std::vector<Chunk>& wave, float* packed, const Exec& exec) {
    const Isa isa = exec.device->isa();
    const int64_t left_block = left_block_floats(isa, p.m), right_block = right_block_floats(isa, p.n);
    std::vector<PackedChunk> chunks;
    std::vector<int64_t> ends;
    for (const Chunk& chunk : wave) {
        const int64_t blocks = ceil_div(chunk.rows, kDepth);
        chunks.push_back({chunk.rows, packed, packed + blocks * left_block, chunk.out, chunk.out_stride,
                          p.accumulate || chunk.first > 0});
        packed += blocks * (left_block + right_block);
        ends.push_back((ends.empty() ? 0 : ends.back()) + blocks);
    }
    exec.parallel(ends.back(), [&](int64_t piece, int) {
        int64_t block = 0;
        const size_t item = find_item(ends, piece, block);
        const Chunk& chunk = wave[item];
        const int64_t row = chunk.group->first + chunk.first + block * kDepth;
        const int64_t rows = std::min(kDepth, chunk.rows - block * kDepth);
        pack_left_block(isa, p.m, rows, p.a.at(row, 0), 0,
                        const_cast<float*>(chunks[item].left) + block * left_block);
        pack_right_block(isa, p.n, rows, p.b.at(row, 0), 0,
                         const_cast<float*>(chunks[item].right) + block * right_block);
    });
    multiply_chunks(p.m, p.n, chunks, exec);
}

}  // namespace

int64_t left_block_floats(Isa isa, int64_t m) {
    return ceil_div(m, tile_rows(isa)) * panel_rows(isa) * kDepth;
}
int64_t right_block_floats(Isa isa, int64_t n) {
    return round_up(n, tile_columns(isa)) * kDepth;
}
void pack_left_block(Isa isa, int64_t m, int64_t rows, const Matrix& a, int64_t at, float* block) {
    pack_left_panels(isa, m, rows, a, block + at * panel_rows(isa), panel_rows(isa) * kDepth);
}
void pack_right_block(Isa isa, int64_t n, int64_t rows, const Matrix& b, int64_t at, float* block) {
    pack_right_panels(isa, false, rows, n, b, block + at * tile_columns(isa), tile_columns(isa) * kDepth);
}

void multiply_chunks(int64_t m, int64_t n, const std::vector<PackedChunk>& chunks, const Exec& exec) {
    if (chunks.empty()) return;
    const Isa isa = exec.device->isa();
    std::vector<size_t> starts;  // the first chunk of each result
    for (size_t i = 0; i < chunks.size(); ++i) {
        if (i == 0 || chunks[i].out != chunks[i - 1].out) starts.push_back(i);
    }
    const auto outs = static_cast<int64_t>(starts.size());
    starts.push_back(chunks.size());
    const TileGrid grid = tile_grid(isa, m, n, outs);
    exec.parallel(outs * grid.down * grid.across, [&](int64_t piece, int) {
        const auto out = static_cast<size_t>(piece / (grid.down * grid.across));
        const int64_t row = piece / grid.across % grid.down * grid.height;
        const int64_t column = piece % grid.across * grid.width;
        multiply_tile(isa, m, n, &chunks[starts[out]], chunks.data() + starts[out + 1], row,
                      std::min(grid.height, m - row), column, std::min(grid.width, n - column));
    });
}

void run_products(const DepthProducts& p, const Exec& exec) {
    const Isa isa = exec.device->isa();
    const int64_t size = p.m * p.n;
    const int64_t block = left_block_floats(isa, p.m) + right_block_floats(isa, p.n);
    const int64_t chunk_rows = std::clamp(kPackedBudget / block, int64_t{1}, kChunkRows / kDepth) * kDepth;
    // Results that are not f32 are summed in scratch.
    const bool rounded = !p.groups.empty() && p.groups.front().out.dtype != DType::F32;
    const Scratch sums("gemm.gradient_sums", rounded ? p.groups.size() * static_cast<size_t>(size) * 4 : 0,
                       exec);
    std::vector<Chunk> todo;
    int64_t blocks = 0;
    for (size_t g = 0; g < p.groups.size(); ++g) {
        const DepthGroup& group = p.groups[g];
        float* out =
            rounded ? sums.as<float>() + static_cast<int64_t>(g) * size : static_cast<float*>(group.out.data);
        const int64_t stride = rounded ? p.n : group.out.stride;
        for (int64_t row = 0; row < group.rows; row += chunk_rows) {
            todo.push_back({&group, row, std::min(chunk_rows, group.rows - row), out, stride});
            blocks += ceil_div(todo.back().rows, kDepth);
        }
        if (rounded && p.accumulate) {
            with_float_type(group.out.dtype, [&](auto type) {
                using T = decltype(type);
                widen_rows(isa, p.m, p.n, static_cast<const T*>(group.out.data), group.out.stride, out,
                           stride);
            });
        } else if (group.rows == 0 && !p.accumulate) {
            for (int64_t i = 0; i < p.m; ++i) std::fill_n(out + i * stride, p.n, 0.0f);
        }
    }
    const int64_t room = std::min(blocks, std::max(kPackedBudget / block, chunk_rows / kDepth));
    const Scratch packed("gemm.packed_rows", static_cast<size_t>(std::max<int64_t>(room * block, 1)) * 4,
                         exec);
    for (size_t next = 0; next < todo.size();) {
        std::vector<Chunk> wave;
        int64_t used = 0;
        while (next < todo.size() && (wave.empty() || used + ceil_div(todo[next].rows, kDepth) <= room)) {
            used += ceil_div(todo[next].rows, kDepth);
            wave.push_back(todo[next++]);
        }
        run_wave(p, wave, packed.as<float>(), exec);
    }
    if (!rounded) return;
    for (size_t g = 0; g < p.groups.size(); ++g) {
        if (p.accumulate && p.groups[g].rows == 0) continue;
        finish_rows(isa, p.m, p.n, sums.as<float>() + static_cast<int64_t>(g) * size, p.n, p.groups[g].out);
    }
}

}  // namespace moebius::ops::cpu
