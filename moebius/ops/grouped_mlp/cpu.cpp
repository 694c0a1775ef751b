// Forward: a block of rows of one expert goes through both products while it is in cache.
#include "moebius/ops/grouped_mlp/cpu.h"

#include <algorithm>

#include "moebius/ops/gemm/cpu_products.h"
#include "moebius/ops/grouped_gemm/cpu.h"
#include "moebius/ops/swiglu/cpu_body.h"

namespace moebius::ops::cpu {
namespace {

// Experts whose weights lie packed at the same time.
struct Expert {
    int64_t first, rows;
    Right gate_up, down;
};

// One thread's scratch, in floats.
struct Layout {
    int64_t left, sums, activation, c;  // sizes
    int64_t total() const { return left + sums + activation + c; }
};

template <class T>
Layout layout(Isa isa, int64_t hidden, int64_t intermediate, bool keeps_c) {
    constexpr bool kNarrow = !std::is_same_v<T, float>;
    const int64_t rows = block_rows(isa), wide = good_row_stride(2 * intermediate);
    return {round_up(packed_left_floats(isa, false, rows, std::max(hidden, intermediate)), 16),
            round_up(rows * std::max(wide, good_row_stride(hidden)), 16),
            round_up(rows * good_row_stride(intermediate), 16), kNarrow && !keeps_c ? rows * wide : 0};
}

template <class T>
struct ForwardBlock {
    const GroupedMlpArgs& args;
    Isa isa;
    int64_t hidden, intermediate;
    Layout at;

    // The pre-activation of rows [row, row + rows): in args.c, or in scratch without it.
    Matrix pre_activation(const Expert& expert, int64_t row, int64_t rows, float* scratch) const {
        float* sums = scratch + at.left;
        const int64_t wide = good_row_stride(2 * intermediate);
        Matrix c = args.c ? Matrix(args.c).at(row, 0)
                          : Matrix(at.c ? sums + at.sums + at.activation : sums, DTypeOf<T>::value, wide);
        const Left x = pack_left(isa, rows, hidden, Matrix(args.x).at(row, 0), scratch);
        if constexpr (std::is_same_v<T, float>) {
            multiply_wide(isa, rows, 2 * intermediate, hidden, x, expert.gate_up, static_cast<float*>(c.data),
                          c.stride, false);
        } else {
            multiply_wide(isa, rows, 2 * intermediate, hidden, x, expert.gate_up, sums, wide, false);
            finish_rows(isa, rows, 2 * intermediate, sums, wide, c);
        }
        return c;
    }

    // `ahead`: rows that this thread will probably take next, fetched during the second product.
    void run(const Expert& expert, int64_t row, int64_t rows, float* scratch, Ahead& ahead) const {
        const Matrix c = pre_activation(expert, row, rows, scratch);
        float* sums = scratch + at.left;
        T* activation = reinterpret_cast<T*>(sums + at.sums);
        const int64_t stride = good_row_stride(intermediate);
        with_isa<GluForwardBody>(
            isa, args.options,
            GluForwardRows<T>{.rows = rows,
                              .intermediate = intermediate,
                              .x = static_cast<const T*>(c.data),
                              .x_stride = c.stride,
                              .scales = args.scales ? args.scales.as<float>() + row : nullptr,
                              .y = activation,
                              .y_stride = stride});
        const Matrix y = Matrix(args.y).at(row, 0);
        if constexpr (std::is_same_v<T, float>) {
            multiply_wide(isa, rows, hidden, intermediate, Left{activation, stride}, expert.down,
                          static_cast<float*>(y.data), y.stride, false, &ahead);
        } else {
            const Left left =
                pack_left(isa, rows, intermediate, Matrix(activation, DTypeOf<T>::value, stride), scratch);
            multiply_wide(isa, rows, hidden, intermediate, left, expert.down, sums, good_row_stride(hidden),
                          false, &ahead);
            finish_rows(isa, rows, hidden, sums, good_row_stride(hidden), y);
        }
    }
};

template <class T>
void run_wave(const ForwardBlock<T>& block, const std::vector<Expert>& experts, float* scratch,
              const Exec& exec) {
    const int64_t height = block_rows(block.isa);
    std::vector<int64_t> ends;
    for (const Expert& expert : experts)
        ends.push_back((ends.empty() ? 0 : ends.back()) + ceil_div(expert.rows, height));
    exec.parallel(ends.back(), [&](int64_t piece, int thread) {
        int64_t local = 0;
        const Expert& expert = experts[find_item(ends, piece, local)];
        const int64_t row = local * height;
        const int64_t later = row + height * exec.threads->size();
        Ahead ahead;
        if (later < expert.rows) {
            add_ahead(ahead, Matrix(block.args.x).at(expert.first + later, 0),
                      std::min(height, expert.rows - later), block.hidden);
        }
        block.run(expert, expert.first + row, std::min(height, expert.rows - row),
                  scratch + thread * block.at.total(), ahead);
    });
}

}  // namespace

void grouped_mlp(const GroupedMlpArgs& args, const Exec& exec) {
    const Isa isa = exec.device->isa();
    const int64_t hidden = args.x.size(1), intermediate = args.down.size(2);
    const auto all = expert_rows(args.split_sizes, args.x.size(0));
    const int64_t gate_up_floats = packed_right_floats(isa, hidden, 2 * intermediate);
    const int64_t expert_floats =
        round_up(gate_up_floats + packed_right_floats(isa, intermediate, hidden), 16);
    std::vector<int64_t> todo;
    for (size_t e = 0; e < all.size(); ++e) {
        if (all[e].rows > 0) todo.push_back(static_cast<int64_t>(e));
    }
    if (todo.empty()) return;
    const auto room = static_cast<size_t>(std::clamp<int64_t>(
        kPackedBudget / std::max<int64_t>(expert_floats, 1), 1, static_cast<int64_t>(todo.size())));
    const Scratch packed("grouped_mlp.packed_weights",
                         scratch_bytes(static_cast<int64_t>(room) * expert_floats), exec);
    with_float_type(args.x.dtype, [&](auto type) {
        using T = decltype(type);
        const ForwardBlock<T> block{args, isa, hidden, intermediate,
                                    layout<T>(isa, hidden, intermediate, static_cast<bool>(args.c))};
        const Scratch scratch("grouped_mlp.rows", scratch_bytes(block.at.total() * exec.threads->size()),
                              exec);
        for (size_t next = 0; next < todo.size(); next += room) {
            std::vector<Expert> experts;
            std::vector<WeightPacking> weights;
            float* to = packed.as<float>();
            for (size_t i = next; i < std::min(todo.size(), next + room); ++i, to += expert_floats) {
                const int64_t e = todo[i];
                weights.push_back({Matrix(args.gate_up.at(e)), true, hidden, 2 * intermediate, to});
                const Right gate_up = weights.back().right(isa);
                weights.push_back({Matrix(args.down.at(e)), true, intermediate, hidden, to + gate_up_floats});
                const ExpertRows& rows = all[static_cast<size_t>(e)];
                experts.push_back({rows.first, rows.rows, gate_up, weights.back().right(isa)});
            }
            pack_weights(weights, exec);
            run_wave(block, experts, scratch.as<float>(), exec);
        }
    });
}

}  // namespace moebius::ops::cpu
