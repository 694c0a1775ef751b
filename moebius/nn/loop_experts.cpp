#include "moebius/nn/loop_experts.h"

#include "moebius/base/error.h"
#include "moebius/nn/grouped_linear.h"
#include "moebius/ops/gemm/gemm.h"
#include "moebius/ops/swiglu/swiglu.h"

namespace moebius::nn {
namespace {

using precision::Role;
using precision::Use;

struct LoopContext : Context {
    Tensor x, c, activation, scales, split_sizes;
    // With it low_x and low_activation, one an expert that has rows, in the place of x and activation.
    std::shared_ptr<const precision::Recipe> recipe;
    std::vector<Quantized> low_x, low_activation;
    int64_t bytes() const override {
        int64_t total = c.view().bytes();
        if (!recipe) return total + x.view().bytes() + activation.view().bytes();
        for (const auto* list : {&low_x, &low_activation}) {
            for (const Quantized& tensor : *list) total += tensor.bytes();
        }
        return total;
    }
};

// One expert's rows in one of the two layers, all three products in low precision.
struct ExpertInLowPrecision {
    LowPrecisionLinear& linear;
    const precision::Recipe& recipe;
    int64_t expert;
    View count;  // (1): its rows

    Quantized rows(const View& values, Role role, Directions directions, const Run& run) const {
        return quantize_rows(values, View(), role, recipe, directions, run.exec,
                             linear.tensor(role, recipe, run).expert(expert));
    }
    void forward(const Quantized& x, const View& y, const Run& run) const {
        const Quantized all = linear.weight(Direction::Row, recipe, run);  // an operand only borrows
        const Operand w = expert_of(all.row(), expert);
        LowPrecisionProduct{Use::Forward, x.row(), w, y, count}.run(recipe, run.exec);
    }
    void backward(const View& dy, const Quantized& x, const View& dx, float beta, const Run& run) const {
        const Quantized low_dy = rows(dy, Role::GradOutput, {.row = true, .column = true}, run);
        const View dw = linear.parameter().main_grad.rows(expert, 1);
        LowPrecisionProduct{Use::Wgrad, low_dy.column(), x.column(), dw, count, beta}.run(recipe, run.exec);
        const Quantized all = linear.weight(Direction::Column, recipe, run);
        const Operand w = expert_of(all.column(), expert);
        LowPrecisionProduct{Use::Dgrad, low_dy.row(), w, dx, count}.run(recipe, run.exec);
    }
};

class LoopGroupedMlp : public Fusible {
  public:
    LoopGroupedMlp(std::unique_ptr<Sequential> chain, const GroupedMlpOptions& options)
        : chain_(std::move(chain)),
          low_gate_up_(static_cast<GroupedLinear&>(chain_->op(0)).low_precision()),
          low_down_(static_cast<GroupedLinear&>(chain_->op(2)).low_precision()),
          gate_up_(static_cast<GroupedLinear&>(chain_->op(0)).weight()),
          down_(static_cast<GroupedLinear&>(chain_->op(2)).weight()),
          options_(options) {}

    OpKind kind() const override { return OpKind::Fused; }
    std::string name() const override { return "LoopGroupedMLP"; }
    int extra_inputs() const override { return 3; }
    void low_precision(std::vector<LowPrecisionLinear*>& list) override { chain_->low_precision(list); }

    Forward forward(Activation x, std::span<const Tensor> extra, Run& run) override {
        const int64_t rows = x.high.shape()[0];
        Tensor c = Tensor::empty("loop.c", {rows, 2 * options_.intermediate}, run.dtype, run.exec);
        Tensor a = Tensor::empty("loop.activation", {rows, options_.intermediate}, run.dtype, run.exec);
        Tensor y = Tensor::empty("loop.y", {rows, options_.hidden}, run.dtype, run.exec);
        std::vector<Quantized> low_x, low_a;
        const Directions directions{.row = true, .column = run.pass.save};
        each_expert(extra[0], rows, run, [&](int64_t e, int64_t begin, int64_t count) {
            const View ce = c.view().rows(begin, count), ae = a.view().rows(begin, count);
            if (run.recipe) {
                const View size = extra[0].view().rows(e, 1);
                const ExpertInLowPrecision up{low_gate_up_, *run.recipe, e, size};
                const ExpertInLowPrecision down{low_down_, *run.recipe, e, size};
                low_x.push_back(up.rows(x.high.view().rows(begin, count), Role::Input, directions, run));
                up.forward(low_x.back(), ce, run);
                ops::scaled_glu({.x = ce, .scales = extra[1].view().rows(begin, count), .y = ae}, run.exec);
                low_a.push_back(down.rows(ae, Role::Input, directions, run));
                down.forward(low_a.back(), y.view().rows(begin, count), run);
                low_x.back().drop(Direction::Row);
                low_a.back().drop(Direction::Row);
                return;
            }
            ops::gemm({.a = x.high.view().rows(begin, count), .b = gate_up_->value.at(e), .out = ce},
                      run.exec);
            ops::scaled_glu({.x = ce, .scales = extra[1].view().rows(begin, count), .y = ae}, run.exec);
            ops::gemm({.a = ae, .b = down_->value.at(e), .out = y.view().rows(begin, count)}, run.exec);
        });
        if (!run.pass.save) return {{y}, nullptr};
        auto context = std::make_unique<LoopContext>();
        context->recipe = run.recipe;
        context->low_x = std::move(low_x);
        context->low_activation = std::move(low_a);
        if (!run.recipe) {
            context->x = x.high;
            context->activation = a;
        }
        context->c = c;
        context->scales = extra[1];
        context->split_sizes = extra[0];
        return {{y}, std::move(context)};
    }

    FusibleBackward backward(ContextPtr opaque, Activation dy, Run& run) override {
        const auto context = take<LoopContext>(std::move(opaque));
        const int64_t rows = dy.high.shape()[0];
        Tensor dx = Tensor::empty("loop.dx", {rows, options_.hidden}, run.dtype, run.exec);
        Tensor da = Tensor::empty("loop.da", {rows, options_.intermediate}, run.dtype, run.exec);
        Tensor dc = Tensor::empty("loop.dc", context->c.shape(), run.dtype, run.exec);
        Tensor dscales = Tensor::empty("loop.dscales", {rows}, DType::F32, run.exec);
        const float beta_gate_up = gate_up_->take_fresh(), beta_down = down_->take_fresh();
        // An expert without rows is not visited below.
        if (beta_gate_up == 0) fill_zero(gate_up_->main_grad, run.exec);
        if (beta_down == 0) fill_zero(down_->main_grad, run.exec);
        size_t visited = 0;
        each_expert(context->split_sizes, rows, run, [&](int64_t e, int64_t begin, int64_t count) {
            const auto part = [&](const Tensor& t) { return t.view().rows(begin, count); };
            const auto wgrad = [&](const View& a, const View& b, const View& out, float beta) {
                ops::gemm({.kind = ops::GemmKind::Wgrad, .a = a, .b = b, .out = out, .beta = beta}, run.exec);
            };
            const View size = context->split_sizes.view().rows(e, 1);
            if (context->recipe) {
                const ExpertInLowPrecision down{low_down_, *context->recipe, e, size};
                down.backward(part(dy.high), context->low_activation[visited], part(da), beta_down, run);
            } else {
                wgrad(part(dy.high), part(context->activation), down_->main_grad.at(e), beta_down);
                ops::gemm({.kind = ops::GemmKind::Dgrad,
                           .a = part(dy.high),
                           .b = down_->value.at(e),
                           .out = part(da)},
                          run.exec);
            }
            ops::scaled_glu_backward({.x = part(context->c),
                                      .scales = part(context->scales),
                                      .dy = part(da),
                                      .dx = part(dc),
                                      .dscales = part(dscales)},
                                     run.exec);
            if (context->recipe) {
                const ExpertInLowPrecision up{low_gate_up_, *context->recipe, e, size};
                up.backward(part(dc), context->low_x[visited++], part(dx), beta_gate_up, run);
                return;
            }
            wgrad(part(dc), part(context->x), gate_up_->main_grad.at(e), beta_gate_up);
            ops::gemm(
                {.kind = ops::GemmKind::Dgrad, .a = part(dc), .b = gate_up_->value.at(e), .out = part(dx)},
                run.exec);
        });
        return {{dx}, {Tensor(), dscales, Tensor()}};
    }

  private:
    // A dry run knows no counts: it plans for all rows at the first expert, which costs the same.
    template <class F>
    void each_expert(const Tensor& split_sizes, int64_t rows, const Run& run, F&& f) const {
        if (run.exec.device->kind() != DeviceKind::Cpu) {
            throw Error("expert_ffn_mode = loop runs on the CPU only (device=cpu)");
        }
        const int32_t* sizes = run.exec.dry ? nullptr : split_sizes.view().as<int32_t>();
        int64_t begin = 0;
        for (int64_t e = 0; e < options_.experts; ++e) {
            const int64_t count = sizes ? sizes[e] : (e == 0 ? rows : 0);
            if (count > 0) f(e, begin, count);
            begin += count;
        }
    }

    std::unique_ptr<Sequential> chain_;  // owns the declarations
    LowPrecisionLinear &low_gate_up_, &low_down_;
    Parameter* gate_up_;
    Parameter* down_;
    GroupedMlpOptions options_;
};

}  // namespace

std::unique_ptr<Fusible> loop_grouped_mlp(ParameterSet& parameters, const std::string& name,
                                          const GroupedMlpOptions& options) {
    return std::make_unique<LoopGroupedMlp>(grouped_mlp(parameters, name, options), options);
}

}  // namespace moebius::nn
