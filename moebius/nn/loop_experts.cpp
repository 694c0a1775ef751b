#include "moebius/nn/loop_experts.h"

#include "moebius/base/error.h"
#include "moebius/nn/grouped_linear.h"
#include "moebius/ops/gemm/gemm.h"
#include "moebius/ops/swiglu/swiglu.h"

namespace moebius::nn {
namespace {

struct LoopContext : Context {
    Tensor x, c, activation, scales, split_sizes;
    int64_t bytes() const override { return x.view().bytes() + c.view().bytes() + activation.view().bytes(); }
};

class LoopGroupedMlp : public Fusible {
  public:
    LoopGroupedMlp(std::unique_ptr<Sequential> chain, const GroupedMlpOptions& options)
        : chain_(std::move(chain)),
          gate_up_(static_cast<GroupedLinear&>(chain_->op(0)).weight()),
          down_(static_cast<GroupedLinear&>(chain_->op(2)).weight()),
          options_(options) {}

    OpKind kind() const override { return OpKind::Fused; }
    std::string name() const override { return "LoopGroupedMLP"; }
    int extra_inputs() const override { return 3; }

    Forward forward(Activation x, std::span<const Tensor> extra, Run& run) override {
        const int64_t rows = x.high.shape()[0];
        Tensor c = Tensor::empty("loop.c", {rows, 2 * options_.intermediate}, run.dtype, run.exec);
        Tensor a = Tensor::empty("loop.activation", {rows, options_.intermediate}, run.dtype, run.exec);
        Tensor y = Tensor::empty("loop.y", {rows, options_.hidden}, run.dtype, run.exec);
        each_expert(extra[0], rows, run, [&](int64_t e, int64_t begin, int64_t count) {
            const View ce = c.view().rows(begin, count), ae = a.view().rows(begin, count);
            ops::gemm({.a = x.high.view().rows(begin, count), .b = gate_up_->value.at(e), .out = ce},
                      run.exec);
            ops::scaled_glu({.x = ce, .scales = extra[1].view().rows(begin, count), .y = ae}, run.exec);
            ops::gemm({.a = ae, .b = down_->value.at(e), .out = y.view().rows(begin, count)}, run.exec);
        });
        if (!run.pass.save) return {{y}, nullptr};
        auto context = std::make_unique<LoopContext>();
        context->x = x.high;
        context->c = c;
        context->activation = a;
        context->scales = extra[1];
        context->split_sizes = extra[0];
        return {{y}, std::move(context)};
    }

    FusibleBackward backward(ContextPtr opaque, Activation dy, Run& run) override {
        const auto context = take<LoopContext>(std::move(opaque));
        Tensor dx = Tensor::empty("loop.dx", context->x.shape(), run.dtype, run.exec);
        Tensor da = Tensor::empty("loop.da", context->activation.shape(), run.dtype, run.exec);
        Tensor dc = Tensor::empty("loop.dc", context->c.shape(), run.dtype, run.exec);
        Tensor dscales = Tensor::empty("loop.dscales", {dx.shape()[0]}, DType::F32, run.exec);
        const float beta_gate_up = gate_up_->take_fresh(), beta_down = down_->take_fresh();
        // An expert without rows is not visited below.
        if (beta_gate_up == 0) fill_zero(gate_up_->main_grad, run.exec);
        if (beta_down == 0) fill_zero(down_->main_grad, run.exec);
        each_expert(context->split_sizes, dx.shape()[0], run, [&](int64_t e, int64_t begin, int64_t count) {
            const auto part = [&](const Tensor& t) { return t.view().rows(begin, count); };
            const auto wgrad = [&](const View& a, const View& b, const View& out, float beta) {
                ops::gemm({.kind = ops::GemmKind::Wgrad, .a = a, .b = b, .out = out, .beta = beta}, run.exec);
            };
            wgrad(part(dy.high), part(context->activation), down_->main_grad.at(e), beta_down);
            ops::gemm(
                {.kind = ops::GemmKind::Dgrad, .a = part(dy.high), .b = down_->value.at(e), .out = part(da)},
                run.exec);
            ops::scaled_glu_backward({.x = part(context->c),
                                      .scales = part(context->scales),
                                      .dy = part(da),
                                      .dx = part(dc),
                                      .dscales = part(dscales)},
                                     run.exec);
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
