#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "moebius/ops/aux_loss/aux_loss.h"
#include "moebius/ops/case.h"
#include "moebius/ops/router/router.h"

namespace moebius::ops {
namespace {

enum class Logits { Any, Ties, ToOne };

struct Problem {
    std::string name, group;
    int64_t tokens, experts;
    RouterOptions options;
    bool bias = false, masked = false;
    Logits logits = Logits::Any;
    bool probs = true, z = true;  // of the backward: which gradients arrive

    std::string full_name() const {
        return fmt::format("{}.{}{}.{}x{}k{}", name,
                           options.score == RouterScore::Sigmoid ? "sigmoid" : "softmax",
                           options.normalize ? "_normalized" : "", tokens, experts, options.topk);
    }
};

double logit(const Problem& p, int64_t index, const Philox& random) {
    const auto at = static_cast<uint64_t>(index);
    if (p.logits == Logits::Ties) return static_cast<double>(random.below(at, 3)) - 1.0;
    if (p.logits == Logits::ToOne) return index % p.experts == p.experts - 1 ? 9.0 : random.normal(at);
    return 1.5 * random.normal(at) - 0.5;
}

// One token, straight from the definitions.
template <class Real>
struct Token {
    std::vector<Real> scores, probs, softmax, weights;
    std::vector<int64_t> chosen;
    Real lse = 0, score_sum = 0, chosen_sum = 0;
};

// The first of the largest; it is then out of the choice.
template <class Real>
int64_t take_largest(std::vector<Real>& values) {
    const auto best = std::max_element(values.begin(), values.end());
    *best = -std::numeric_limits<Real>::infinity();
    return best - values.begin();
}

template <class Real>
void limit_groups(const RouterOptions& o, std::vector<Real>& selection) {
    const int64_t size = static_cast<int64_t>(selection.size()) / o.num_groups;
    std::vector<Real> groups;
    for (int64_t g = 0; g < o.num_groups; ++g) {
        std::vector<Real> members(selection.begin() + g * size, selection.begin() + (g + 1) * size);
        std::sort(members.rbegin(), members.rend());
        groups.push_back(size > 1 ? members[0] + members[1] : members[0]);
    }
    for (int64_t i = 0; i < o.topk_groups; ++i) take_largest(groups);
    for (size_t e = 0; e < selection.size(); ++e) {
        if (std::isfinite(groups[e / static_cast<size_t>(size)]))
            selection[e] = -std::numeric_limits<Real>::infinity();
    }
}

template <class Real>
Token<Real> route(const Problem& p, const Real* x, const Real* bias) {
    const RouterOptions& o = p.options;
    Token<Real> t;
    const Real most = *std::max_element(x, x + p.experts);
    Real total = 0;
    for (int64_t e = 0; e < p.experts; ++e) total += std::exp(x[e] - most);
    t.lse = most + std::log(total);
    for (int64_t e = 0; e < p.experts; ++e) {
        t.softmax.push_back(std::exp(x[e] - most) / total);
        t.scores.push_back(o.score == RouterScore::Sigmoid ? Real(1) / (Real(1) + std::exp(-x[e]))
                                                           : t.softmax.back());
        t.score_sum += t.scores.back();
    }
    for (const Real score : t.scores)
        t.probs.push_back(o.score == RouterScore::Sigmoid ? score / t.score_sum : score);
    std::vector<Real> selection = t.scores;
    for (int64_t e = 0; e < p.experts && bias; ++e) selection[static_cast<size_t>(e)] += bias[e];
    if (o.topk_groups < o.num_groups) limit_groups(o, selection);
    for (int64_t s = 0; s < o.topk; ++s) t.chosen.push_back(take_largest(selection));
    for (const int64_t e : t.chosen) t.chosen_sum += t.scores[static_cast<size_t>(e)];
    for (const int64_t e : t.chosen)
        t.weights.push_back(t.scores[static_cast<size_t>(e)] / (o.normalize ? t.chosen_sum : Real(1)));
    return t;
}

template <class H>
auto route_row(const Problem& p, H& h, int64_t token) {
    using Real = std::decay_t<decltype(h["logits"][0])>;
    return route<Real>(p, &h["logits"].at(token, 0), p.bias ? h["bias"].values.data() : nullptr);
}

// Weights, indices and statistics of all tokens, statistics added.
template <class H>
void route_all(const Problem& p, H& h) {
    using Real = std::decay_t<decltype(h["logits"][0])>;
    for (int64_t i = 0; i < p.tokens; ++i) {
        const auto t = route_row(p, h, i);
        const bool counted = !p.masked || h["valid"][i] != 0;
        for (int64_t s = 0; s < p.options.topk; ++s) {
            const auto slot = static_cast<size_t>(s);
            h["topk_indices"].at(i, s) = static_cast<Real>(t.chosen[slot]);
            h["topk_weights"].at(i, s) = t.weights[slot];
            if (counted) h["counts"][t.chosen[slot]] += 1;
        }
        for (int64_t e = 0; e < p.experts && counted; ++e)
            h["prob_sums"][e] += t.probs[static_cast<size_t>(e)];
        if (counted) h["z_sum"][0] += t.lse * t.lse;
        if (counted) h["tokens"][0] += 1;
    }
}

// Through weights and probabilities to scores, and from there to logits.
template <class H>
void backward_all(const Problem& p, H& h) {
    using Real = std::decay_t<decltype(h["logits"][0])>;
    const auto experts = static_cast<size_t>(p.experts);
    for (int64_t i = 0; i < p.tokens; ++i) {
        const auto t = route_row(p, h, i);
        const bool counted = !p.masked || h["valid"][i] != 0;
        std::vector<Real> dscores(experts, Real(0));
        Real upstream = 0, mean = 0, inner = 0;
        for (size_t s = 0; s < t.chosen.size(); ++s)
            upstream += t.weights[s] * h["dweights"].at(i, static_cast<int64_t>(s));
        for (size_t s = 0; s < t.chosen.size(); ++s) {
            const Real g = h["dweights"].at(i, static_cast<int64_t>(s));
            dscores[static_cast<size_t>(t.chosen[s])] +=
                p.options.normalize ? (g - upstream) / t.chosen_sum : g;
        }
        const bool sigmoid = p.options.score == RouterScore::Sigmoid;
        const auto dprob = [&](size_t e) { return h["dprobs"][static_cast<int64_t>(e)]; };
        for (size_t e = 0; e < experts && p.probs && counted; ++e) mean += t.probs[e] * dprob(e);
        for (size_t e = 0; e < experts && p.probs && counted; ++e)
            dscores[e] += sigmoid ? (dprob(e) - mean) / t.score_sum : dprob(e);
        for (size_t e = 0; e < experts; ++e) inner += t.scores[e] * dscores[e];
        for (size_t e = 0; e < experts; ++e) {
            Real& out = h["dlogits"].at(i, static_cast<int64_t>(e));
            out = t.scores[e] * (sigmoid ? dscores[e] * (Real(1) - t.scores[e]) : dscores[e] - inner);
            if (p.z && counted) out += Real(2) * t.lse * t.softmax[e] * h["dz"][0];
        }
    }
}

double valid_value(int64_t index, const Philox& random) {
    return random.uniform(static_cast<uint64_t>(index)) < 0.7 || index == 0 ? 1 : 0;
}

// (The same stream in every case of the problem: the backward's inputs are computed from it.)
TensorSpec logits_spec(const Problem& p) {
    const Philox random(11, p.full_name());
    return {.name = "logits", .shape = {p.tokens, p.experts}, .value = [=](int64_t i, const Philox&) {
                return logit(p, i, random);
            }};
}

double bias(const Problem& p, int64_t expert) {
    const double value = 0.2 * Philox(12, p.full_name()).normal(static_cast<uint64_t>(expert));
    return static_cast<double>(static_cast<float>(value));
}

void add_options(const Problem& p, std::vector<TensorSpec>& tensors) {
    if (p.bias)
        tensors.push_back({.name = "bias", .shape = {p.experts}, .value = [=](int64_t i, const Philox&) {
                               return bias(p, i);
                           }});
    if (p.masked)
        tensors.push_back({.name = "valid", .shape = {p.tokens}, .dtype = DType::U8, .value = valid_value});
}

RouterArgs router_args(const Problem& p, const Views& v) {
    return {.options = p.options,
            .logits = v["logits"],
            .bias = v["bias"],
            .valid = v["valid"],
            .topk_indices = v["topk_indices"],
            .topk_weights = v["topk_weights"],
            .counts = v["counts"],
            .prob_sums = v["prob_sums"],
            .z_sum = v["z_sum"],
            .tokens = v["tokens"]};
}

void add_routed(const Problem& p, std::vector<TensorSpec>& tensors, double start) {
    const auto at_start = [=](int64_t i, const Philox&) { return start * static_cast<double>(i + 1); };
    const Shape slots{p.tokens, p.options.topk};
    tensors.push_back({.name = "topk_indices", .shape = slots, .dtype = DType::I32, .role = Role::Output});
    tensors.push_back(  // exp, Σ over k, a quotient
        {.name = "topk_weights", .shape = slots, .role = Role::Output, .roundings = 3 + p.options.topk});
    tensors.push_back(
        {.name = "counts", .shape = {p.experts}, .role = Role::InOut, .value = at_start, .exact = true});
    tensors.push_back({.name = "prob_sums", .shape = {p.experts}, .role = Role::InOut, .value = at_start});
    tensors.push_back({.name = "z_sum", .shape = {1}, .role = Role::InOut, .value = at_start});
    tensors.push_back(
        {.name = "tokens", .shape = {1}, .role = Role::InOut, .value = at_start, .exact = true});
}

// Experts in reverse order and indices turned back: the same but for ties.
void reversed_router(const Problem& p, const Views& v, const Exec& exec) {
    SharedVector<float> logits(static_cast<size_t>(p.tokens * p.experts));
    for (int64_t i = 0; i < p.tokens * p.experts; ++i) {
        const int64_t from = i / p.experts * p.experts + (p.experts - 1 - i % p.experts);
        logits[static_cast<size_t>(i)] = v["logits"].as<float>()[from];
    }
    RouterArgs args = router_args(p, v);
    args.logits.data = logits.data();
    router(args, exec);
    for (int64_t i = 0; i < p.tokens * p.options.topk; ++i) {
        auto& index = v["topk_indices"].as<int32_t>()[i];
        index = static_cast<int32_t>(p.experts - 1 - index);
    }
    std::reverse(v["counts"].as<float>(), v["counts"].as<float>() + p.experts);
    std::reverse(v["prob_sums"].as<float>(), v["prob_sums"].as<float>() + p.experts);
}

void add_router_mutants(const Problem& p, Case& c) {
    const auto add = [&](const char* name, auto change) {
        c.mutants.push_back({name, [=](const Views& v, const Exec& exec) {
                                 RouterArgs args = router_args(p, v);
                                 change(args);
                                 router(args, exec);
                             }});
    };
    if (p.bias) add("no bias", [](RouterArgs& args) { args.bias = View(); });
    if (p.masked) add("counts padding", [](RouterArgs& args) { args.valid = View(); });
    // (Groups of one without a bias limit nothing.)
    if (p.options.topk_groups < p.options.num_groups && p.options.num_groups < p.experts)
        add("no group limit",
            [](RouterArgs& args) { args.options.num_groups = args.options.topk_groups = 1; });
    const bool softmax = p.options.score == RouterScore::Softmax;
    if (p.experts > p.options.topk || !softmax)
        add("the other normalization", [](RouterArgs& args) { args.options.normalize ^= true; });
    if (p.logits == Logits::Ties)
        c.mutants.push_back({"ties to the higher index",
                             [=](const Views& v, const Exec& exec) { reversed_router(p, v, exec); }});
}

Case router_case(const Problem& p) {
    Case c;
    c.op = "router";
    c.name = p.full_name();
    c.group = p.group;
    c.tensors = {logits_spec(p)};
    add_options(p, c.tensors);
    add_routed(p, c.tensors, 3);
    c.run = [=](const Views& v, const Exec& exec) { router(router_args(p, v), exec); };
    set_reference(c, [=](auto& h) { route_all(p, h); });
    c.cost = [=](const Views& v) { return cost(router_args(p, v)); };
    add_router_mutants(p, c);
    return c;
}

// Forward's results for the same logits, rounded as forward stores them.
struct Routed {
    std::vector<double> indices, weights;
};

std::shared_ptr<const Routed> routed(const Problem& p) {
    const Philox random(11, p.full_name());
    auto result = std::make_shared<Routed>();
    std::vector<double> biases;
    for (int64_t e = 0; e < p.experts; ++e) biases.push_back(bias(p, e));
    for (int64_t i = 0; i < p.tokens; ++i) {
        std::vector<double> x;
        for (int64_t e = 0; e < p.experts; ++e)
            x.push_back(static_cast<double>(static_cast<float>(logit(p, i * p.experts + e, random))));
        const Token<double> t = route<double>(p, x.data(), p.bias ? biases.data() : nullptr);
        result->indices.insert(result->indices.end(), t.chosen.begin(), t.chosen.end());
        result->weights.insert(result->weights.end(), t.weights.begin(), t.weights.end());
    }
    return result;
}

RouterBackwardArgs backward_args(const Problem& p, const Views& v) {
    return {.options = p.options,
            .logits = v["logits"],
            .valid = v["valid"],
            .topk_indices = v["topk_indices"],
            .topk_weights = v["topk_weights"],
            .dweights = v["dweights"],
            .dprobs = v["dprobs"],
            .dz = v["dz"],
            .dlogits = v["dlogits"]};
}

// Forward's outputs as new tensors, with statistics from zero.
void forward_for_gradient(const Problem& p, Host<double>& h) {
    for (const char* name : {"topk_indices", "topk_weights"})
        h.tensors[name] = {{p.tokens, p.options.topk},
                           DType::F64,
                           std::vector<double>(static_cast<size_t>(p.tokens * p.options.topk))};
    for (const char* name : {"counts", "prob_sums"})
        h.tensors[name] = {{p.experts}, DType::F64, std::vector<double>(static_cast<size_t>(p.experts))};
    for (const char* name : {"z_sum", "tokens"}) h.tensors[name] = {{1}, DType::F64, {0.0}};
    route_all(p, h);
}

Case backward_case(const Problem& p) {
    Case c;
    c.op = "router_backward";
    c.name = p.full_name() + (p.probs ? ".probs" : "") + (p.z ? ".z" : "");
    c.group = p.group;
    const auto forward = routed(p);
    const Shape slots{p.tokens, p.options.topk};
    c.tensors = {
        logits_spec(p),
        {.name = "topk_indices",
         .shape = slots,
         .dtype = DType::I32,
         .value = [=](int64_t i, const Philox&) { return forward->indices[static_cast<size_t>(i)]; }},
        {.name = "topk_weights",
         .shape = slots,
         .value = [=](int64_t i, const Philox&) { return forward->weights[static_cast<size_t>(i)]; }},
        {.name = "dweights", .shape = slots},
        // exp, σ, Σ over k, three products
        {.name = "dlogits",
         .shape = {p.tokens, p.experts},
         .role = Role::Output,
         .roundings = 5 + p.options.topk}};
    add_options(p, c.tensors);
    if (p.probs) c.tensors.push_back({.name = "dprobs", .shape = {p.experts}});
    if (p.z)
        c.tensors.push_back(
            {.name = "dz", .shape = {1}, .value = [](int64_t, const Philox&) { return 0.3; }});
    c.run = [=](const Views& v, const Exec& exec) { router_backward(backward_args(p, v), exec); };
    set_reference(c, [=](auto& h) { backward_all(p, h); });
    c.cost = [=](const Views& v) { return cost(backward_args(p, v)); };
    c.gradient = GradientCheck{.forward = [=](Host<double>& h) { forward_for_gradient(p, h); },
                               .outputs = {{"topk_weights", "dweights"}},
                               .wrt = {{"logits", "dlogits"}}};
    if (p.logits == Logits::Ties) c.gradient.reset();  // the choice itself changes with the logits
    if (c.gradient && p.probs) c.gradient->outputs.push_back({"prob_sums", "dprobs"});
    if (c.gradient && p.z) c.gradient->outputs.push_back({"z_sum", "dz"});
    const auto add = [&](const char* name, auto change) {
        c.mutants.push_back({name, [=](const Views& v, const Exec& exec) {
                                 RouterBackwardArgs args = backward_args(p, v);
                                 change(args);
                                 router_backward(args, exec);
                             }});
    };
    if (p.experts > 1) {
        if (p.probs) add("forgets dprobs", [](auto& args) { args.dprobs = View(); });
        if (p.options.topk < p.experts)
            add("the other normalization", [](auto& args) { args.options.normalize ^= true; });
    }
    if (p.z) add("forgets dz", [](auto& args) { args.dz = View(); });
    if (p.masked && (p.probs || p.z)) add("padding counts", [](auto& args) { args.valid = View(); });
    return c;
}

std::vector<Problem> problems() {
    std::vector<Problem> all;
    for (const auto score : {RouterScore::Softmax, RouterScore::Sigmoid}) {
        for (const bool normalize : {true, false}) {
            const auto with = [&](int64_t topk) {
                return RouterOptions{.topk = topk, .score = score, .normalize = normalize};
            };
            const auto grouped = [&](int64_t topk, int64_t groups, int64_t chosen) {
                RouterOptions options = with(topk);
                options.num_groups = groups;
                options.topk_groups = chosen;
                return options;
            };
            all.insert(all.end(),
                       {
                           {"plain", "basic", 77, 8, with(2)},
                           {"pieces", "basic", 600, 4, with(2), false, true},
                           {"many", "basic", 35, 256, with(8)},
                           {"odd", "basic", 33, 67, with(5), false, true},
                           {"bias", "basic", 49, 16, with(4), true, true},
                           {"groups", "basic", 50, 32, grouped(4, 8, 3)},
                           {"groups_of_one", "edge", 20, 6, grouped(2, 6, 3)},
                           {"groups_bias", "basic", 40, 24, grouped(6, 4, 2), true, true},
                           {"ties", "edge", 64, 8, with(3), false, false, Logits::Ties},
                           {"group_ties", "edge", 64, 12, grouped(3, 4, 2), false, false, Logits::Ties},
                           {"to_one", "edge", 40, 4, with(1), false, false, Logits::ToOne},
                           {"one_token", "edge", 1, 20, with(8)},
                           {"all_experts", "edge", 17, 5, with(5)},
                           {"one_expert", "edge", 16, 1, with(1)},
                       });
        }
    }
    return all;
}

// The whole way of an auxiliary loss: router, statistics of its one layer, losses, their gradients, router's
// backward. The gradient check sees it as one function of the logits.
Case aux_loss_case(const std::string& name, AuxLossDefinition definition, const Problem& p) {
    Case c;
    c.op = "router_backward";
    c.name = "through_aux_loss." + name + "." + p.full_name();
    c.group = p.group;
    c.tensors = {logits_spec(p),
                 {.name = "dweights", .shape = {p.tokens, p.options.topk}},
                 {.name = "scale", .shape = {1}, .value = [](int64_t, const Philox&) { return 20.0; }},
                 {.name = "aux_loss", .shape = {1}, .role = Role::Output},
                 {.name = "z_loss", .shape = {1}, .role = Role::Output},
                 {.name = "dprobs", .shape = {p.experts}, .role = Role::Output},
                 {.name = "dz", .shape = {1}, .role = Role::Output},
                 {.name = "dlogits", .shape = {p.tokens, p.experts}, .role = Role::Output}};
    add_options(p, c.tensors);
    add_routed(p, c.tensors, 0);
    constexpr double kCoeff = 0.5, kZ = 0.25;
    const auto run = [=](const Views& v, const Exec& exec, const View& valid) {
        const Shape one{1, p.experts};
        router(router_args(p, v), exec);
        aux_loss({.definition = definition,
                  .coeff = kCoeff,
                  .z_coeff = kZ,
                  .topk = p.options.topk,
                  .counts = v["counts"].reshaped(one),
                  .prob_sums = v["prob_sums"].reshaped(one),
                  .z_sums = v["z_sum"],
                  .tokens = v["tokens"],
                  .scale = v["scale"],
                  .aux_loss = v["aux_loss"],
                  .z_loss = v["z_loss"],
                  .dprobs = v["dprobs"].reshaped(one),
                  .dz = v["dz"]},
                 exec);
        RouterBackwardArgs args = backward_args(p, v);
        args.valid = valid;
        router_backward(args, exec);
    };
    const auto losses = [=](auto& h) {
        using Real = std::decay_t<decltype(h["logits"][0])>;
        route_all(p, h);
        const Real tokens = h["tokens"][0], experts = static_cast<Real>(p.experts);
        const Real copies =
            definition == AuxLossDefinition::Switch ? tokens * static_cast<Real>(p.options.topk) : tokens;
        h["aux_loss"][0] = 0;
        for (int64_t e = 0; e < p.experts; ++e) {
            const Real per_prob = static_cast<Real>(kCoeff) * experts * (h["counts"][e] / copies) / tokens;
            h["aux_loss"][0] += per_prob * h["prob_sums"][e];
            h["dprobs"][e] = h["scale"][0] * per_prob;
        }
        h["z_loss"][0] = static_cast<Real>(kZ) * h["z_sum"][0] / tokens;
        h["dz"][0] = h["scale"][0] * static_cast<Real>(kZ) / tokens;
    };
    c.run = [=](const Views& v, const Exec& exec) { run(v, exec, v["valid"]); };
    set_reference(c, [=](auto& h) {
        losses(h);
        backward_all(p, h);
    });
    const auto forward = [=](Host<double>& h) {
        for (const char* statistic : {"counts", "prob_sums", "z_sum", "tokens"})
            std::fill(h[statistic].values.begin(), h[statistic].values.end(), 0.0);
        losses(h);
    };
    c.gradient =
        GradientCheck{.forward = forward,
                      .outputs = {{"topk_weights", "dweights"}, {"aux_loss", "scale"}, {"z_loss", "scale"}},
                      .wrt = {{"logits", "dlogits"}}};
    c.mutants = {
        {"padding counts in the gradient", [=](const Views& v, const Exec& exec) { run(v, exec, View()); }}};
    return c;
}

}  // namespace

void router_cases(std::vector<Case>& cases) {
    for (const Problem& p : problems()) {
        cases.push_back(router_case(p));
        for (const auto& [probs, z] : {std::pair{true, true}, {false, false}, {true, false}, {false, true}}) {
            Problem backward = p;
            backward.probs = probs;
            backward.z = z;
            // With one weight of 1, or one expert, nothing else has a gradient.
            const bool silent = p.options.topk == 1 && p.options.normalize;
            const bool alone = p.experts == 1;
            if ((silent && !probs && !z) || (alone && !z)) continue;
            cases.push_back(backward_case(backward));
        }
    }
    for (const auto score : {RouterScore::Softmax, RouterScore::Sigmoid}) {
        const RouterOptions options{.topk = 2, .score = score};
        const Problem p{"masked", "basic", 70, 6, options, false, true};
        cases.push_back(aux_loss_case("hugging_face", AuxLossDefinition::HuggingFace, p));
        cases.push_back(aux_loss_case("switch", AuxLossDefinition::Switch, p));
    }
    const Problem bench{"bench", "bench", 8192, 4, {.topk = 2}};
    cases.push_back(router_case(bench));
    cases.back().bench = true;
    cases.push_back(backward_case(bench));
    cases.back().bench = true;
    for (const auto& [experts, topk] : std::vector<std::pair<int64_t, int64_t>>{{8, 2}, {64, 8}}) {
        const Problem large{"large", "bench", 16384, experts, {.topk = topk}};
        for (Case& c : std::vector{router_case(large), backward_case(large)}) {
            cases.push_back(c);
            cases.back().bench = cases.back().large = true;
        }
    }
}

}  // namespace moebius::ops
