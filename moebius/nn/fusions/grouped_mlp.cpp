#include "moebius/nn/fusions/grouped_mlp.h"

#include <fmt/format.h>

#include "moebius/nn/grouped_linear.h"
#include "moebius/nn/scaled_glu.h"
#include "moebius/ops/grouped_mlp/grouped_mlp.h"

namespace moebius::nn {
namespace {

struct FusedContext : Context {
    Tensor x, c, scales, split_sizes;
    int64_t bytes() const override { return x.view().bytes() + c.view().bytes(); }
};

class FusedGroupedMlp : public Fusible {
  public:
    FusedGroupedMlp(GroupedLinear& gate_up, ScaledGlu& glu, GroupedLinear& down)
        : gate_up_(gate_up), glu_(glu), down_(down) {}

    OpKind kind() const override { return OpKind::Fused; }
    std::string name() const override { return "FusedGroupedMLP"; }
    int extra_inputs() const override { return 3; }  // split_sizes, scales, split_sizes

    Forward forward(Activation x, std::span<const Tensor> extra, Run& run) override {
        const int64_t rows = x.high.shape()[0];
        Tensor y = Tensor::empty("grouped_mlp.y", {rows, down_.options().out_features}, run.dtype, run.exec);
        Tensor c;
        if (run.pass.save) {
            c = Tensor::empty("grouped_mlp.c", {rows, gate_up_.options().out_features}, run.dtype, run.exec);
        }
        ops::grouped_mlp({.options = glu_.options(),
                          .x = x.high,
                          .gate_up = gate_up_.weight()->value,
                          .down = down_.weight()->value,
                          .scales = extra[1],
                          .split_sizes = extra[0],
                          .c = c,
                          .y = y},
                         run.exec);
        if (!run.pass.save) return {{y}, nullptr};
        auto context = std::make_unique<FusedContext>();
        context->x = x.high;
        context->c = c;
        context->scales = extra[1];
        context->split_sizes = extra[0];
        return {{y}, std::move(context)};
    }

    FusibleBackward backward(ContextPtr opaque, Activation dy, Run& run) override {
        const auto context = take<FusedContext>(std::move(opaque));
        Tensor dx = Tensor::empty("grouped_mlp.dx", context->x.shape(), run.dtype, run.exec);
        Tensor dscales = Tensor::empty("grouped_mlp.dscales", {dx.shape()[0]}, DType::F32, run.exec);
        ops::grouped_mlp_backward({.options = glu_.options(),
                                   .x = context->x,
                                   .c = context->c,
                                   .gate_up = gate_up_.weight()->value,
                                   .down = down_.weight()->value,
                                   .scales = context->scales,
                                   .split_sizes = context->split_sizes,
                                   .dy = dy.high,
                                   .dx = dx,
                                   .dgate_up = gate_up_.weight()->main_grad,
                                   .ddown = down_.weight()->main_grad,
                                   .dscales = dscales,
                                   .beta_gate_up = gate_up_.weight()->take_fresh(),
                                   .beta_down = down_.weight()->take_fresh()},
                                  run.exec);
        return {{dx}, {Tensor(), dscales, Tensor()}};
    }

  private:
    GroupedLinear& gate_up_;
    ScaledGlu& glu_;
    GroupedLinear& down_;
};

std::string why_not(std::span<Fusible* const> window, const Run& run) {
    if (run.recipe) return fmt::format("its kernels take no {}", run.recipe->name);
    const auto& gate_up = static_cast<const GroupedLinear&>(*window[0]);
    const auto& down = static_cast<const GroupedLinear&>(*window[2]);
    for (const GroupedLinear* linear : {&gate_up, &down}) {
        if (linear->options().bias) return fmt::format("{} has a bias", linear->name());
        if (linear->options().delay_wgrad_compute)
            return fmt::format("{} delays its weight gradient", linear->name());
    }
    if (gate_up.options().num_groups != down.options().num_groups) {
        return fmt::format("{} and {} groups", gate_up.options().num_groups, down.options().num_groups);
    }
    if (gate_up.options().out_features != 2 * down.options().in_features) {
        return fmt::format("gate and up give {} columns, not 2 · {}", gate_up.options().out_features,
                           down.options().in_features);
    }
    return {};
}

std::unique_ptr<Fusible> make(std::span<Fusible* const> window) {
    return std::make_unique<FusedGroupedMlp>(static_cast<GroupedLinear&>(*window[0]),
                                             static_cast<ScaledGlu&>(*window[1]),
                                             static_cast<GroupedLinear&>(*window[2]));
}

}  // namespace

FusionPattern grouped_mlp_fusion() {
    return {
        "FusedGroupedMLP", {OpKind::GroupedLinear, OpKind::ScaledGlu, OpKind::GroupedLinear}, why_not, make};
}

}  // namespace moebius::nn
