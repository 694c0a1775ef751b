// Backward, in waves of rows. By blocks of rows: the activation's gradient, dC and the activation once more,
// dx; then the weights' gradients from dC and the activation of the wave.
#include <algorithm>

#include "moebius/ops/gemm/cpu_products.h"
#include "moebius/ops/grouped_gemm/cpu.h"
#include "moebius/ops/grouped_mlp/cpu.h"
#include "moebius/ops/swiglu/cpu_body.h"

namespace moebius::ops::cpu {
namespace {

// Rows of one expert in a wave, and what is kept of them.
struct Part {
    int64_t expert, first, rows;  // `first` counts from the expert's first row
    int64_t row;                  // of the buffers
    int64_t slot;                 // of the fp32 sums, where the expert's rows lie in several waves; else −1
    Right down, gate_up;
    Matrix dc, activation;
};

// In floats, unless they say bytes.
struct Sizes {
    Isa isa;
    DType dtype;
    int64_t hidden, intermediate;

    int64_t wide() const { return good_row_stride(2 * intermediate); }  // strides of dC, the activation
    int64_t narrow() const { return good_row_stride(intermediate); }
    int64_t kept_row() const { return (wide() + narrow()) * bits(dtype) / 32; }
    int64_t down() const { return packed_right_floats(isa, hidden, intermediate); }
    int64_t weights() const {
        return round_up(down() + packed_right_floats(isa, 2 * intermediate, hidden), 16);
    }
    int64_t gradients() const { return 3 * hidden * intermediate; }  // of one expert
    // One thread's scratch: a left operand, and sums.
    int64_t left() const {
        return round_up(packed_left_floats(isa, false, block_rows(isa), std::max(hidden, 2 * intermediate)),
                        16);
    }
    int64_t sums() const { return block_rows(isa) * std::max(good_row_stride(hidden), narrow()); }
    int64_t per_thread() const { return left() + sums(); }
};

template <class T>
struct BackwardBlock {
    const GroupedMlpBackwardArgs& args;
    Sizes size;

    // Rows [at, at + rows) of the part.
    void run(const Part& part, int64_t at, int64_t rows, int threads, float* scratch) const {
        const Isa isa = size.isa;
        const int64_t hidden = size.hidden, intermediate = size.intermediate, row = part.row + at;
        float* sums = scratch + size.left();
        // The activation's gradient, rounded where the unfused chain stores it.
        const Left dy = pack_left(isa, rows, hidden, Matrix(args.dy).at(row, 0), scratch);
        const Matrix dc = part.dc.at(at, 0), activation = part.activation.at(at, 0);
        Ahead ahead;
        add_ahead(ahead, Matrix(args.c).at(row, 0), rows, 2 * intermediate);
        add_ahead(ahead, dc, rows, 2 * intermediate);
        add_ahead(ahead, activation, rows, intermediate);
        multiply_wide(isa, rows, intermediate, hidden, dy, part.down, sums, size.narrow(), false, &ahead);
        const T* upstream = reinterpret_cast<const T*>(sums);
        if constexpr (!std::is_same_v<T, float>) {
            T* rounded = reinterpret_cast<T*>(scratch);  // dy has been used
            finish_rows(isa, rows, intermediate, sums, size.narrow(),
                        Matrix(rounded, size.dtype, size.narrow()));
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
                               .dy_stride = size.narrow(),
                               .dx = static_cast<T*>(dc.data),
                               .dx_stride = dc.stride,
                               .dscales = args.dscales ? args.dscales.as<float>() + row : nullptr,
                               .y = static_cast<T*>(activation.data),
                               .y_stride = activation.stride});
        const Matrix dx = Matrix(args.dx).at(row, 0);
        const Left left = pack_left(isa, rows, 2 * intermediate, dc, scratch);
        // Rows that this thread will probably take next.
        const int64_t later = at + block_rows(isa) * threads;
        Ahead next;
        if (later < part.rows) {
            add_ahead(next, Matrix(args.dy).at(part.row + later, 0),
                      std::min(block_rows(isa), part.rows - later), hidden);
        }
        if constexpr (std::is_same_v<T, float>) {
            multiply_wide(isa, rows, hidden, 2 * intermediate, left, part.gate_up,
                          static_cast<float*>(dx.data), dx.stride, false, &next);
        } else {
            multiply_wide(isa, rows, hidden, 2 * intermediate, left, part.gate_up, sums,
                          good_row_stride(hidden), false, &next);
            finish_rows(isa, rows, hidden, sums, good_row_stride(hidden), dx);
        }
    }
};

class Backward {
  public:
    Backward(const GroupedMlpBackwardArgs& args, const Exec& exec)
        : args_(args),
          exec_(exec),
          size_{exec.device->isa(), args.x.dtype, args.x.size(1), args.down.size(2)},
          experts_(expert_rows(args.split_sizes, args.x.size(0))) {}

    void run() {
        add_empty_experts();
        std::vector<std::vector<Part>> waves = plan();
        if (waves.empty()) return;
        int64_t most = 0;
        for (const auto& wave : waves) most = std::max(most, floats(wave));
        const Scratch kept("grouped_mlp.wave", scratch_bytes(most), exec_);
        const Scratch open("grouped_mlp.sums", scratch_bytes(give_slots(waves) * size_.gradients()), exec_);
        for (std::vector<Part>& wave : waves) {
            place(wave, kept.as<float>());
            run_rows(wave);
            run_weights(wave, open.as<float>());
        }
    }

  private:
    // As many rows a wave as the budget holds, cut where the sums over rows are.
    std::vector<std::vector<Part>> plan() const {
        std::vector<std::vector<Part>> waves;
        int64_t room = 0;
        for (size_t e = 0; e < experts_.size(); ++e) {
            const auto [first, rows] = experts_[e];
            for (int64_t done = 0; done < rows;) {
                int64_t fit = (room - size_.weights()) / size_.kept_row();
                if (fit < rows - done) fit = fit / kSliceRows * kSliceRows;
                if (fit <= 0) {
                    waves.emplace_back();
                    room = std::max(kPackedBudget, size_.weights() + kSliceRows * size_.kept_row());
                    continue;
                }
                const int64_t count = std::min(fit, rows - done);
                waves.back().push_back(
                    {static_cast<int64_t>(e), done, count, first + done, -1, {}, {}, {}, {}});
                room -= size_.weights() + round_up(count * size_.kept_row(), 16);
                done += count;
            }
        }
        return waves;
    }
    // Gradients that are not f32 are rounded once: an expert whose rows lie in several waves is summed apart.
    // In one wave one such expert may end and another begin. Returns the slots needed.
    int64_t give_slots(std::vector<std::vector<Part>>& waves) const {
        if (args_.dgate_up.dtype == DType::F32 && args_.ddown.dtype == DType::F32) return 0;
        int64_t cut = 0;
        for (std::vector<Part>& wave : waves) {
            for (Part& part : wave) {
                if (part.rows == experts_[static_cast<size_t>(part.expert)].rows) continue;
                if (part.first == 0) ++cut;
                part.slot = (cut - 1) % 2;
            }
        }
        return std::min<int64_t>(cut, 2);
    }
    bool ends(const Part& part) const {
        return part.first + part.rows == experts_[static_cast<size_t>(part.expert)].rows;
    }
    int64_t floats(const std::vector<Part>& wave) const {
        int64_t total = 0;
        for (const Part& part : wave) total += size_.weights() + round_up(part.rows * size_.kept_row(), 16);
        return total;
    }

    // Gives every part its memory and packs its weights.
    void place(std::vector<Part>& wave, float* memory) const {
        std::vector<WeightPacking> weights;
        for (Part& part : wave) {
            const int64_t hidden = size_.hidden, intermediate = size_.intermediate;
            weights.push_back({Matrix(args_.down.at(part.expert)), false, hidden, intermediate, memory});
            part.down = weights.back().right(size_.isa);
            weights.push_back({Matrix(args_.gate_up.at(part.expert)), false, 2 * intermediate, hidden,
                               memory + size_.down()});
            part.gate_up = weights.back().right(size_.isa);
            memory += size_.weights();
            part.dc = Matrix(memory, size_.dtype, size_.wide());
            part.activation = Matrix(part.dc.at(part.rows, 0).data, size_.dtype, size_.narrow());
            memory += round_up(part.rows * size_.kept_row(), 16);
        }
        pack_weights(weights, exec_);
    }

    void run_rows(const std::vector<Part>& wave) const {
        const Scratch scratch("grouped_mlp.rows", scratch_bytes(size_.per_thread() * exec_.threads->size()),
                              exec_);
        const int64_t height = block_rows(size_.isa);
        std::vector<int64_t> ends;
        for (const Part& part : wave)
            ends.push_back((ends.empty() ? 0 : ends.back()) + ceil_div(part.rows, height));
        with_float_type(size_.dtype, [&](auto type) {
            const BackwardBlock<decltype(type)> block{args_, size_};
            exec_.parallel(ends.back(), [&](int64_t piece, int thread) {
                int64_t local = 0;
                const Part& part = wave[find_item(ends, piece, local)];
                block.run(part, local * height, std::min(height, part.rows - local * height),
                          exec_.threads->size(), scratch.as<float>() + thread * size_.per_thread());
            });
        });
    }

    void run_weights(const std::vector<Part>& wave, float* open) const {
        DepthProducts gate_up{.m = 2 * size_.intermediate, .n = size_.hidden};
        DepthProducts down{.m = size_.hidden, .n = size_.intermediate};
        for (const Part& part : wave) {
            const bool later = part.first > 0;
            const Sums sums = sums_of(part, open);
            if (part.slot >= 0 && !later && args_.beta_gate_up != 0)
                widen(args_.dgate_up.at(part.expert), sums.gate_up);
            if (part.slot >= 0 && !later && args_.beta_down != 0)
                widen(args_.ddown.at(part.expert), sums.down);
            gate_up.groups.push_back({.rows = part.rows,
                                      .a = part.dc,
                                      .b = Matrix(args_.x).at(part.row, 0),
                                      .out = sums.gate_up,
                                      .accumulate = later || args_.beta_gate_up != 0});
            down.groups.push_back({.rows = part.rows,
                                   .a = Matrix(args_.dy).at(part.row, 0),
                                   .b = part.activation,
                                   .out = sums.down,
                                   .accumulate = later || args_.beta_down != 0});
        }
        run_products(gate_up, exec_);
        run_products(down, exec_);
        for (const Part& part : wave) {
            if (part.slot < 0 || !ends(part)) continue;
            const Sums sums = sums_of(part, open);
            round(sums.gate_up, args_.dgate_up.at(part.expert));
            round(sums.down, args_.ddown.at(part.expert));
        }
    }

    // Where a part's gradients are summed: in place, or in the slot of its expert.
    struct Sums {
        Matrix gate_up, down;
    };
    Sums sums_of(const Part& part, float* open) const {
        if (part.slot < 0)
            return {Matrix(args_.dgate_up.at(part.expert)), Matrix(args_.ddown.at(part.expert))};
        float* sums = open + part.slot * size_.gradients();
        return {Matrix(sums, DType::F32, size_.hidden),
                Matrix(sums + 2 * size_.intermediate * size_.hidden, DType::F32, size_.intermediate)};
    }
    template <class F>
    void by_rows(const View& gradient, F&& f) const {
        constexpr int64_t kRows = 64;
        exec_.parallel(ceil_div(gradient.size(0), kRows), [&](int64_t piece, int) {
            f(piece * kRows, std::min(kRows, gradient.size(0) - piece * kRows));
        });
    }
    void widen(const View& from, const Matrix& to) const {
        with_float_type(from.dtype, [&](auto type) {
            by_rows(from, [&](int64_t row, int64_t rows) {
                const Matrix part = Matrix(from).at(row, 0), sums = to.at(row, 0);
                widen_rows(size_.isa, rows, from.size(1), static_cast<const decltype(type)*>(part.data),
                           part.stride, static_cast<float*>(sums.data), sums.stride);
            });
        });
    }
    void round(const Matrix& from, const View& to) const {
        by_rows(to, [&](int64_t row, int64_t rows) {
            const Matrix sums = from.at(row, 0);
            finish_rows(size_.isa, rows, to.size(1), static_cast<const float*>(sums.data), sums.stride,
                        Matrix(to).at(row, 0));
        });
    }

    // Zeros, where nothing is added up.
    void add_empty_experts() const {
        DepthProducts gate_up{.m = 2 * size_.intermediate, .n = size_.hidden};
        DepthProducts down{.m = size_.hidden, .n = size_.intermediate};
        for (size_t e = 0; e < experts_.size(); ++e) {
            if (experts_[e].rows > 0) continue;
            const auto index = static_cast<int64_t>(e);
            gate_up.groups.push_back(
                {.out = Matrix(args_.dgate_up.at(index)), .accumulate = args_.beta_gate_up != 0});
            down.groups.push_back({.out = Matrix(args_.ddown.at(index)), .accumulate = args_.beta_down != 0});
        }
        run_products(gate_up, exec_);
        run_products(down, exec_);
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
