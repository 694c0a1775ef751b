#include "moebius/ops/aux_loss/aux_loss.h"

#include <fmt/format.h>

#include "moebius/ops/case.h"

namespace moebius::ops {
namespace {

struct Problem {
    std::string name, group;
    AuxLossDefinition definition;
    int64_t layers, experts, topk;
    int64_t empty_layer = -1;  // has no tokens
    bool to_one = false;       // all copies to the last k experts
    float coeff = 0.75f, z_coeff = 0.3f;
};

int64_t tokens_of(const Problem& p, int64_t layer) {
    return layer == p.empty_layer ? 0 : 40 + 3 * layer;
}

AuxLossArgs args_of(const Problem& p, const Views& v) {
    return {.definition = p.definition,
            .coeff = p.coeff,
            .z_coeff = p.z_coeff,
            .topk = p.topk,
            .counts = v["counts"],
            .prob_sums = v["prob_sums"],
            .z_sums = v["z_sums"],
            .tokens = v["tokens"],
            .scale = v["scale"],
            .aux_loss = v["aux_loss"],
            .z_loss = v["z_loss"],
            .layer_aux_loss = v["layer_aux_loss"],
            .dprobs = v["dprobs"],
            .dz = v["dz"]};
}

// The two losses and the layers' own values, straight from the definitions.
template <class H>
void losses(const Problem& p, H& h) {
    using Real = std::decay_t<decltype(h["counts"][0])>;
    const bool together = p.definition == AuxLossDefinition::HuggingFace;
    const Real experts = static_cast<Real>(p.experts);
    const Real copies = together ? Real(1) : static_cast<Real>(p.topk);
    Real all = 0, balance = 0, z = 0;
    for (int64_t l = 0; l < p.layers; ++l) all += h["tokens"][l];
    for (int64_t e = 0; e < p.experts && all > 0; ++e) {
        Real count = 0, prob = 0;
        for (int64_t l = 0; l < p.layers; ++l) {
            count += h["counts"].at(l, e);
            prob += h["prob_sums"].at(l, e);
        }
        if (together) balance += experts * (count / all) * (prob / all);
    }
    for (int64_t l = 0; l < p.layers; ++l) {
        const Real tokens = h["tokens"][l];
        Real own = 0;
        for (int64_t e = 0; e < p.experts && tokens > 0; ++e)
            own += experts * (h["counts"].at(l, e) / (copies * tokens)) * (h["prob_sums"].at(l, e) / tokens);
        if (!together) balance += own;
        if (tokens > 0) z += h["z_sums"][l] / tokens;
        h["layer_aux_loss"][l] = own;
    }
    h["aux_loss"][0] = static_cast<Real>(p.coeff) * balance;
    h["z_loss"][0] = static_cast<Real>(p.z_coeff) * z;
}

template <class H>
void gradients(const Problem& p, H& h) {
    using Real = std::decay_t<decltype(h["counts"][0])>;
    const bool together = p.definition == AuxLossDefinition::HuggingFace;
    const Real scale = h["scale"][0] * static_cast<Real>(p.coeff) * static_cast<Real>(p.experts);
    Real all = 0;
    for (int64_t l = 0; l < p.layers; ++l) all += h["tokens"][l];
    for (int64_t l = 0; l < p.layers; ++l) {
        const Real own = h["tokens"][l];
        h["dz"][l] = own > 0 ? h["scale"][0] * static_cast<Real>(p.z_coeff) / own : Real(0);
        for (int64_t e = 0; e < p.experts; ++e) {
            Real count = 0;
            for (int64_t other = 0; other < p.layers; ++other) count += h["counts"].at(other, e);
            if (together) {
                h["dprobs"].at(l, e) = all > 0 ? scale * (count / all) / all : Real(0);
            } else {
                const Real k = static_cast<Real>(p.topk);
                h["dprobs"].at(l, e) = own > 0 ? scale * (h["counts"].at(l, e) / (k * own)) / own : Real(0);
            }
        }
    }
}

std::vector<TensorSpec> tensors_of(const Problem& p) {
    const auto experts = static_cast<uint64_t>(p.experts);
    const auto alive = [p](int64_t layer) { return layer == p.empty_layer ? 0.0 : 1.0; };
    return {{.name = "counts",
             .shape = {p.layers, p.experts},
             .value =
                 [=](int64_t i, const Philox& random) {
                     const int64_t layer = i / p.experts, e = i % p.experts;
                     if (p.to_one)
                         return static_cast<double>(e >= p.experts - p.topk ? tokens_of(p, layer) : 0);
                     const auto most = static_cast<uint64_t>(tokens_of(p, layer)) + 1;
                     return static_cast<double>(random.below(static_cast<uint64_t>(i), most));
                 }},
            {.name = "prob_sums",
             .shape = {p.layers, p.experts},
             .value =
                 [=](int64_t i, const Philox& random) {
                     return alive(i / p.experts) * random.uniform(static_cast<uint64_t>(i)) * 80.0 /
                            static_cast<double>(experts);
                 }},
            {.name = "z_sums",
             .shape = {p.layers},
             .value =
                 [=](int64_t i, const Philox& random) {
                     return alive(i) * random.uniform(static_cast<uint64_t>(i)) * 200;
                 }},
            {.name = "tokens",
             .shape = {p.layers},
             .value = [=](int64_t i, const Philox&) { return static_cast<double>(tokens_of(p, i)); }},
            {.name = "scale", .shape = {1}, .value = [](int64_t, const Philox&) { return 123.0; }},
            {.name = "aux_loss", .shape = {1}, .role = Role::Output},
            {.name = "z_loss", .shape = {1}, .role = Role::Output},
            {.name = "layer_aux_loss", .shape = {p.layers}, .role = Role::Output},
            {.name = "dprobs", .shape = {p.layers, p.experts}, .role = Role::Output},
            {.name = "dz", .shape = {p.layers}, .role = Role::Output}};
}

Case aux_case(const Problem& p) {
    Case c;
    c.op = "aux_loss";
    c.name = p.name;
    c.group = p.group;
    c.tensors = tensors_of(p);
    c.run = [=](const Views& v, const Exec& exec) { aux_loss(args_of(p, v), exec); };
    set_reference(c, [=](auto& h) {
        losses(p, h);
        gradients(p, h);
    });
    c.gradient = GradientCheck{.forward = [=](Host<double>& h) { losses(p, h); },
                               .outputs = {{"aux_loss", "scale"}, {"z_loss", "scale"}},
                               .wrt = {{"prob_sums", "dprobs"}, {"z_sums", "dz"}}};
    c.cost = [=](const Views& v) { return cost(args_of(p, v)); };
    // With one layer, k = 1, the definitions are one.
    if (p.layers > 1 && p.topk > 1) {
        c.mutants.push_back({"the other definition", [=](const Views& v, const Exec& exec) {
                                 AuxLossArgs args = args_of(p, v);
                                 args.definition = p.definition == AuxLossDefinition::Switch
                                                       ? AuxLossDefinition::HuggingFace
                                                       : AuxLossDefinition::Switch;
                                 aux_loss(args, exec);
                             }});
    }
    c.mutants.push_back({"forgets the scale", [=](const Views& v, const Exec& exec) {
                             AuxLossArgs args = args_of(p, v);
                             SharedVector<float> one(1, 1.0f);
                             args.scale = View(one.data(), DType::F32, {1});
                             aux_loss(args, exec);
                         }});
    return c;
}

}  // namespace

void aux_loss_cases(std::vector<Case>& cases) {
    for (const auto definition : {AuxLossDefinition::HuggingFace, AuxLossDefinition::Switch}) {
        const std::string name = definition == AuxLossDefinition::Switch ? "switch" : "hugging_face";
        const auto add = [&](Problem p) {
            p.name = fmt::format("{}.{}.{}x{}.k{}", name, p.name, p.layers, p.experts, p.topk);
            p.definition = definition;
            cases.push_back(aux_case(p));
        };
        add({.name = "plain", .group = "basic", .layers = 3, .experts = 4, .topk = 2});
        add({.name = "many", .group = "basic", .layers = 5, .experts = 65, .topk = 8});
        add({.name = "one_layer", .group = "basic", .layers = 1, .experts = 8, .topk = 1});
        add({.name = "one_expert", .group = "edge", .layers = 2, .experts = 1, .topk = 1});
        add({.name = "to_one", .group = "edge", .layers = 2, .experts = 8, .topk = 2, .to_one = true});
        add({.name = "empty_layer", .group = "edge", .layers = 3, .experts = 4, .topk = 2, .empty_layer = 1});
    }
}

}  // namespace moebius::ops
