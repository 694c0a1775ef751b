// A program that wants the experts' MLP and nothing else of Moebius: one forward and backward on memory of
// its own, checked against plain loops.
#include <moebius/nn/sequential.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

using namespace moebius;

namespace {

constexpr int64_t kExperts = 3, kHidden = 16, kIntermediate = 24;
const std::vector<int32_t> kSplits = {3, 0, 2};  // the second expert gets no row
constexpr int64_t kRows = 5;

// y of one row by the definition: s · silu(gate · x) · (up · x), then down.
std::vector<double> plain_row(const float* x, double scale, const View& gate_up, const View& down) {
    std::vector<double> activation(kIntermediate), y(kHidden, 0.0);
    for (int64_t i = 0; i < kIntermediate; ++i) {
        double gate = 0, up = 0;
        for (int64_t h = 0; h < kHidden; ++h) {
            gate += static_cast<double>(x[h]) * gate_up.as<float>()[i * kHidden + h];
            up += static_cast<double>(x[h]) * gate_up.as<float>()[(kIntermediate + i) * kHidden + h];
        }
        activation[static_cast<size_t>(i)] = scale * gate / (1 + std::exp(-gate)) * up;
    }
    for (int64_t h = 0; h < kHidden; ++h)
        for (int64_t i = 0; i < kIntermediate; ++i)
            y[static_cast<size_t>(h)] +=
                activation[static_cast<size_t>(i)] * down.as<float>()[h * kIntermediate + i];
    return y;
}

double norm(const View& view) {
    double sum = 0;
    for (int64_t i = 0; i < view.numel(); ++i)
        sum += static_cast<double>(view.as<float>()[i]) * view.as<float>()[i];
    return std::sqrt(sum);
}

int fail(const char* what) {
    std::fprintf(stderr, "grouped_mlp_only: %s\n", what);
    return 1;
}

}  // namespace

int main() {
    Device device = Device::cpu();
    HostArena pool;
    ThreadPool threads(2);
    nn::Run run;
    run.exec = {.device = &device, .pool = &pool, .threads = &threads};

    ParameterSet parameters;
    const auto mlp = nn::grouped_mlp(parameters, "experts",
                                     {.experts = kExperts,
                                      .hidden = kHidden,
                                      .intermediate = kIntermediate,
                                      .init_std = 0.5,
                                      .down_init_std = 0.5});
    parameters.place({}, run.exec);
    parameters.fill(1, run.exec);
    parameters.begin_step();

    std::vector<float> x(kRows * kHidden), scales = {0.9f, 0.4f, 0.7f, 0.2f, 1.0f};
    for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i) * 0.7f);
    const Tensor splits =
        Tensor::adopt({const_cast<int32_t*>(kSplits.data()), DType::I32, {kExperts}}, [] {});
    const Tensor probs = Tensor::adopt({scales.data(), DType::F32, {kRows}}, [] {});
    const Tensor input = Tensor::adopt({x.data(), DType::F32, {kRows, kHidden}}, [] {});

    auto [y, context] = mlp->forward({input}, std::vector<Tensor>{splits, probs, splits}, run);

    const View gate_up = parameters.find("experts.gate_up")->value,
               down = parameters.find("experts.down")->value;
    double error = 0, reference = 0;
    for (int64_t row = 0, expert = 0, left = kSplits[0]; row < kRows; ++row, --left) {
        while (left == 0) left = kSplits[static_cast<size_t>(++expert)];
        const auto expected = plain_row(x.data() + row * kHidden, scales[static_cast<size_t>(row)],
                                        gate_up.at(expert), down.at(expert));
        for (int64_t h = 0; h < kHidden; ++h) {
            const double value = expected[static_cast<size_t>(h)];
            error += std::pow(y.high.view().as<float>()[row * kHidden + h] - value, 2);
            reference += value * value;
        }
    }
    std::printf("grouped_mlp_only: relative error %.1e, %s\n", std::sqrt(error / reference),
                mlp->fusion_report().empty() ? "no report" : mlp->fusion_report()[0].pattern.c_str());
    if (!(reference > 0.01)) return fail("the reference is zero");
    if (!(std::sqrt(error / reference) < 1e-5)) return fail("forward differs from plain loops");

    const auto gradient = mlp->backward(std::move(context), y, run);
    parameters.finish_gradients(run.exec);
    const View weight_gradient = parameters.find("experts.gate_up")->main_grad;
    if (!(norm(gradient.dx.high) > 0.01) || !(norm(gradient.dextra[1]) > 0.01)) return fail("no gradient");
    if (!(norm(weight_gradient.at(0)) > 0.01)) return fail("no weight gradient");
    if (norm(weight_gradient.at(1)) != 0) return fail("the expert without rows has a weight gradient");
    return 0;
}
