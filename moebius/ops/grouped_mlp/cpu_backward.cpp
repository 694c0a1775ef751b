// Backward, in waves of chunks of rows of an expert. First pass, by blocks of rows: the activation's
// gradient, dC and the activation once more, dx; dC, dy, the activation and x are left packed. Second pass:
// the weights' gradients from them, tile by tile.
#include <algorithm>

#include "moebius/ops/gemm/cpu_products.h"
#include "moebius/ops/grouped_gemm/cpu.h"
#include "moebius/ops/grouped_mlp/cpu.h"
#include "moebius/ops/swiglu/cpu_body.h"

namespace moebius::ops::cpu {
namespace {

constexpr int64_t kBlockRows = kDepth / 2;  // rows of a piece of the first pass: never across a packed block

struct Chunk {
    int64_t expert, first, rows;  // `first` counts from the expert's first row
};

// Packed blocks of one chunk.
struct PackedRows {
    float *dc, *dy, *activation, *x;
};

struct ExpertWeights {
    Right down, gate_up;
};

struct Sizes {
    Isa isa;
    int64_t hidden, intermediate;

    int64_t dc() const { return left_block_floats(isa, 2 * intermediate); }
    int64_t dy() const { return left_block_floats(isa, hidden); }
    int64_t activation() const { return right_block_floats(isa, intermediate); }
    int64_t x() const { return right_block_floats(isa, hidden); }
    int64_t block() const { return dc() + dy() + activation() + x(); }  // kDepth rows, packed

    int64_t down() const { return packed_right_floats(isa, hidden, intermediate); }
    int64_t weights() const { return down() + packed_right_floats(isa, 2 * intermediate, hidden); }

    // One thread's scratch: a left operand, sums, dC, the activation.
    int64_t left() const {
        return kBlockRows * std::max(good_row_stride(hidden), good_row_stride(2 * intermediate));
    }
    int64_t sums() const {
        return kBlockRows * std::max(good_row_stride(hidden), good_row_stride(intermediate));
    }
    int64_t wide() const { return kBlockRows * good_row_stride(2 * intermediate); }
    int64_t narrow() const { return kBlockRows * good_row_stride(intermediate); }
    int64_t per_thread() const { return left() + sums() + wide() + narrow(); }
};

template <class T>
struct BackwardBlock {
    const GroupedMlpBackwardArgs& args;
    Sizes size;

    // `row`: in the buffers; `at`: in the chunk.
    void run(int64_t row, int64_t at, int64_t rows, const ExpertWeights& weights, const PackedRows& packed,
             float* scratch) const {
        const Isa isa = size.isa;
        const int64_t hidden = size.hidden, intermediate = size.intermediate;
        float* sums = scratch + size.left();
        T* dc = reinterpret_cast<T*>(sums + size.sums());
        T* activation = reinterpret_cast<T*>(sums + size.sums() + size.wide());
        const int64_t wide = good_row_stride(2 * intermediate), narrow = good_row_stride(intermediate);
        constexpr DType kType = DTypeOf<T>::value;

        // The activation's gradient, rounded where the unfused chain stores it.
        const Matrix dy = Matrix(args.dy).at(row, 0);
        const Left dy_left = pack_left(isa, rows, hidden, dy, scratch);
        multiply_wide(isa, rows, intermediate, hidden, dy_left, weights.down, sums, narrow, false);
        const T* upstream = reinterpret_cast<const T*>(sums);
        if constexpr (!std::is_same_v<T, float>) {
            T* rounded = reinterpret_cast<T*>(scratch);  // dy has been used
            finish_rows(isa, rows, intermediate, sums, narrow, Matrix(rounded, kType, narrow));
            upstream = rounded;
        }
        with_isa<GluBackwardBody>(
            isa, args.options,
            GluBackwardRows<T>{.rows = rows,
                               .intermediate = intermediate,
                               .x = args.c.as<T>() + row * args.c.stride[0],
                               .x_stride = args.c.stride[0],
                               .scales = args.scales ? args.scales.as<float>() + row : nullptr,
                               .dy = upstream,
                               .dy_stride = narrow,
                               .dx = dc,
                               .dx_stride = wide,
                               .dscales = args.dscales ? args.dscales.as<float>() + row : nullptr,
                               .y = activation,
                               .y_stride = narrow});

        const Matrix dx = Matrix(args.dx).at(row, 0), dc_rows(dc, kType, wide);
        if constexpr (std::is_same_v<T, float>) {
            multiply_wide(isa, rows, hidden, 2 * intermediate, Left{dc, wide}, weights.gate_up,
                          static_cast<float*>(dx.data), dx.stride, false);
        } else {
            const Left left = pack_left(isa, rows, 2 * intermediate, dc_rows, scratch);
            multiply_wide(isa, rows, hidden, 2 * intermediate, left, weights.gate_up, sums,
                          good_row_stride(hidden), false);
            finish_rows(isa, rows, hidden, sums, good_row_stride(hidden), dx);
        }

        const int64_t block = at / kDepth, within = at % kDepth;
        pack_left_block(isa, 2 * intermediate, rows, dc_rows, within, packed.dc + block * size.dc());
        pack_left_block(isa, hidden, rows, dy, within, packed.dy + block * size.dy());
        pack_right_block(isa, intermediate, rows, Matrix(activation, kType, narrow), within,
                         packed.activation + block * size.activation());
        pack_right_block(isa, hidden, rows, Matrix(args.x).at(row, 0), within, packed.x + block * size.x());
    }
};

class Backward {
  public:
    Backward(const GroupedMlpBackwardArgs& args, const Exec& exec)
        : args_(args),
          exec_(exec),
          size_{exec.device->isa(), args.x.size(1), args.down.size(2)},
          experts_(expert_rows(args.split_sizes, args.x.size(0))) {}

    void run() {
        clear_empty();
        const int64_t half = kPackedBudget / 2;
        const int64_t chunk_rows =
            std::clamp(half / std::max<int64_t>(size_.block(), 1), int64_t{1}, kChunkRows / kDepth) * kDepth;
        std::vector<Chunk> todo;
        for (size_t e = 0; e < experts_.size(); ++e) {
            for (int64_t row = 0; row < experts_[e].rows; row += chunk_rows)
                todo.push_back({static_cast<int64_t>(e), row, std::min(chunk_rows, experts_[e].rows - row)});
        }
        if (todo.empty()) return;
        // Waves, as many chunks each as the budget holds.
        std::vector<size_t> ends;
        int64_t most = 0;
        for (size_t next = 0; next < todo.size(); ends.push_back(next)) {
            int64_t used = 0;
            for (const size_t begin = next; next < todo.size(); ++next) {
                int64_t floats = ceil_div(todo[next].rows, kDepth) * size_.block();
                if (next == begin || todo[next].expert != todo[next - 1].expert) floats += size_.weights();
                if (next > begin && used + floats > kPackedBudget) break;
                used += floats;
            }
            most = std::max(most, used);
        }
        const Scratch memory("grouped_mlp.packed", static_cast<size_t>(most) * 4, exec_);
        const Scratch scratch("grouped_mlp.rows",
                              static_cast<size_t>(size_.per_thread() * exec_.threads->size()) * 4, exec_);
        size_t begin = 0;
        for (const size_t end : ends) {
            run_wave(&todo[begin], &todo[0] + end, memory.as<float>(), scratch.as<float>());
            begin = end;
        }
    }

  private:
    void clear_empty() const {
        for (size_t e = 0; e < experts_.size(); ++e) {
            if (experts_[e].rows > 0) continue;
            const auto index = static_cast<int64_t>(e);
            if (args_.beta_gate_up == 0) clear(args_.dgate_up.at(index));
            if (args_.beta_down == 0) clear(args_.ddown.at(index));
        }
    }
    static void clear(const View& out) {
        for (int64_t i = 0; i < out.size(0); ++i)
            std::fill_n(out.as<float>() + i * out.stride[0], out.size(1), 0.0f);
    }

    void run_wave(const Chunk* begin, const Chunk* end, float* memory, float* scratch) const {
        std::vector<WeightPacking> packing;
        std::vector<ExpertWeights> weights;  // of a chunk
        std::vector<PackedRows> packed;
        std::vector<int64_t> ends;
        for (const Chunk* chunk = begin; chunk != end; ++chunk) {
            if (chunk == begin || chunk->expert != chunk[-1].expert) {
                const int64_t hidden = size_.hidden, intermediate = size_.intermediate;
                packing.push_back(
                    {Matrix(args_.down.at(chunk->expert)), false, hidden, intermediate, memory});
                packing.push_back({Matrix(args_.gate_up.at(chunk->expert)), false, 2 * intermediate, hidden,
                                   memory + size_.down()});
                memory += size_.weights();
            }
            weights.push_back(
                {packing[packing.size() - 2].right(size_.isa), packing.back().right(size_.isa)});
            const int64_t blocks = ceil_div(chunk->rows, kDepth);
            PackedRows rows{};
            rows.dc = memory;
            rows.dy = rows.dc + blocks * size_.dc();
            rows.activation = rows.dy + blocks * size_.dy();
            rows.x = rows.activation + blocks * size_.activation();
            memory = rows.x + blocks * size_.x();
            packed.push_back(rows);
            ends.push_back((ends.empty() ? 0 : ends.back()) + ceil_div(chunk->rows, kBlockRows));
        }
        pack_weights(packing, exec_);
        with_float_type(args_.x.dtype, [&](auto type) {
            const BackwardBlock<decltype(type)> block{args_, size_};
            exec_.parallel(ends.back(), [&](int64_t piece, int thread) {
                int64_t local = 0;
                const size_t item = find_item(ends, piece, local);
                const Chunk& chunk = begin[item];
                const int64_t at = local * kBlockRows;
                const int64_t first = experts_[static_cast<size_t>(chunk.expert)].first + chunk.first;
                block.run(first + at, at, std::min(kBlockRows, chunk.rows - at), weights[item], packed[item],
                          scratch + thread * size_.per_thread());
            });
        });
        std::vector<PackedChunk> gate_up, down;
        for (const Chunk* chunk = begin; chunk != end; ++chunk) {
            const PackedRows& rows = packed[static_cast<size_t>(chunk - begin)];
            const View dgate_up = args_.dgate_up.at(chunk->expert), ddown = args_.ddown.at(chunk->expert);
            gate_up.push_back({chunk->rows, rows.dc, rows.x, dgate_up.as<float>(), dgate_up.stride[0],
                               args_.beta_gate_up != 0 || chunk->first > 0});
            down.push_back({chunk->rows, rows.dy, rows.activation, ddown.as<float>(), ddown.stride[0],
                            args_.beta_down != 0 || chunk->first > 0});
        }
        multiply_chunks(2 * size_.intermediate, size_.hidden, gate_up, exec_);
        multiply_chunks(size_.hidden, size_.intermediate, down, exec_);
    }

    const GroupedMlpBackwardArgs& args_;
    const Exec& exec_;
    Sizes size_;
    std::vector<ExpertRows> experts_;
};

}  // namespace

void grouped_mlp_backward(const GroupedMlpBackwardArgs& args, const Exec& exec) {
    Backward(args, exec).run();
}

}  // namespace moebius::ops::cpu
