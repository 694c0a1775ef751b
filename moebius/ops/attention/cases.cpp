#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string_view>

#include "moebius/ops/attention/attention.h"
#include "moebius/ops/case.h"

namespace moebius::ops {
namespace {

struct Sizes {
    std::vector<int64_t> lengths;  // of the sequences
    int64_t padding = 0;           // tokens after them, NaN in every input
    int64_t heads = 1, kv_heads = 1, head_dim = 16;
    int64_t window = 0;
    int64_t row_padding = 0;  // elements between tokens
    double magnitude = 1;     // of q and k
    bool fused = false;  // tokens of q, k, v and their gradients as far apart as in one tensor of all three

    int64_t used() const { return std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); }
    int64_t tokens() const { return used() + padding; }
    float scale() const { return 1.0f / std::sqrt(static_cast<float>(head_dim)); }
    int64_t longest() const { return *std::max_element(lengths.begin(), lengths.end()); }
    bool none_empty() const { return *std::min_element(lengths.begin(), lengths.end()) > 0; }
};

// Ways to get it wrong, for the mutants.
struct Fault {
    bool sees_later_keys = false, one_sequence = false, next_kv_head = false, no_scale = false;
    bool no_delta = false, first_head_only = false;  // backward only
    int64_t wider = 0;                               // the window, by so many keys
};

// The definition in plain loops: calls f(head, kv_head, query, first key, last key + 1) for all tokens.
template <class F>
void each_query(const Sizes& s, const Fault& fault, F&& f) {
    std::vector<int64_t> lengths = s.lengths;
    if (fault.one_sequence) lengths = {s.used()};
    const int64_t group = s.heads / s.kv_heads;
    int64_t begin = 0;
    for (const int64_t length : lengths) {
        for (int64_t head = 0; head < s.heads; ++head) {
            const int64_t kv_head = (head / group + (fault.next_kv_head ? 1 : 0)) % s.kv_heads;
            for (int64_t i = 0; i < length; ++i) {
                const int64_t first = s.window > 0 ? std::max<int64_t>(0, i + 1 - s.window - fault.wider) : 0;
                f(head, kv_head, begin + i, begin + first, begin + (fault.sees_later_keys ? length : i + 1));
            }
        }
        begin += length;
    }
}

template <class Real>
Real dot(const Real* a, const Real* b, int64_t count) {
    Real total = 0;
    for (int64_t i = 0; i < count; ++i) total += a[i] * b[i];
    return total;
}

template <class Real>
Real* row_of(HostTensor<Real>& x, int64_t token, int64_t head) {
    return x.values.data() + (token * x.size(1) + head) * x.size(2);
}

template <class Real>
void forward(Host<Real>& h, const Sizes& s, const Fault& fault = {}) {
    auto &q = h["q"], &k = h["k"], &v = h["v"], &out = h["out"], &lse = h["lse"];
    const Real scale = fault.no_scale ? Real{1} : static_cast<Real>(s.scale());
    std::vector<Real> p(static_cast<size_t>(s.used()));
    each_query(s, fault, [&](int64_t head, int64_t kv_head, int64_t i, int64_t first, int64_t end) {
        Real most = -std::numeric_limits<Real>::infinity(), sum = 0;
        for (int64_t j = first; j < end; ++j) {
            const Real score = dot(row_of(q, i, head), row_of(k, j, kv_head), s.head_dim) * scale;
            p[static_cast<size_t>(j)] = score;
            most = std::max(most, score);
        }
        Real* o = row_of(out, i, head);
        std::fill_n(o, s.head_dim, Real{0});
        for (int64_t j = first; j < end; ++j) {
            const Real e = std::exp(p[static_cast<size_t>(j)] - most);
            sum += e;
            for (int64_t c = 0; c < s.head_dim; ++c) o[c] += e * row_of(v, j, kv_head)[c];
        }
        for (int64_t c = 0; c < s.head_dim; ++c) o[c] = stored(o[c] / sum, out.dtype);
        lse.at(head, i) = most + std::log(sum);
    });
}

// From the out and lse that h holds.
template <class Real>
void backward(Host<Real>& h, const Sizes& s, const Fault& fault = {}) {
    auto &q = h["q"], &k = h["k"], &v = h["v"], &out = h["out"], &lse = h["lse"], &dout = h["dout"];
    auto &dq = h["dq"], &dk = h["dk"], &dv = h["dv"];
    const Real scale = fault.no_scale ? Real{1} : static_cast<Real>(s.scale());
    for (auto* gradient : {&dq, &dk, &dv})
        std::fill(gradient->values.begin(), gradient->values.end(), Real{0});
    each_query(s, fault, [&](int64_t head, int64_t kv_head, int64_t i, int64_t first, int64_t end) {
        const Real *qi = row_of(q, i, head), *doi = row_of(dout, i, head);
        // Summed downwards: in dp's order, rounding would cancel where a query sees one key and dq is 0.
        Real delta = 0;
        for (int64_t c = fault.no_delta ? 0 : s.head_dim; c-- > 0;) delta += doi[c] * row_of(out, i, head)[c];
        const bool counts = !fault.first_head_only || head % (s.heads / s.kv_heads) == 0;
        Real* dqi = row_of(dq, i, head);
        for (int64_t j = first; j < end; ++j) {
            const Real *kj = row_of(k, j, kv_head), *vj = row_of(v, j, kv_head);
            const Real p = std::exp(dot(qi, kj, s.head_dim) * scale - lse.at(head, i));
            const Real ds = p * (dot(doi, vj, s.head_dim) - delta) * scale;
            Real *dkj = row_of(dk, j, kv_head), *dvj = row_of(dv, j, kv_head);
            for (int64_t c = 0; c < s.head_dim; ++c) {
                dqi[c] += ds * kj[c];
                if (!counts) continue;
                dkj[c] += ds * qi[c];
                dvj[c] += p * doi[c];
            }
        }
    });
}

// A mutant: the definition with a fault, on the op's own views.
template <class F>
Mutant mutant(const std::string& name, const std::vector<TensorSpec>& specs, int64_t used, F&& run) {
    return {name, [=](const Views& views, const Exec&) {
                const auto each = [&](auto&& f) {
                    for (const TensorSpec& spec : specs) {
                        const View view = views[spec.name];
                        if (spec.name == "cu_seqlens") continue;
                        const int64_t row = view.numel() / view.size(0);
                        for (int64_t i = 0; i < view.numel(); ++i) {
                            const int64_t token = spec.name == "lse" ? i % row : i / row;
                            if (token < used) f(spec, view, i, i / row * view.stride[0] + i % row);
                        }
                    }
                };
                Host<float> h;
                for (const TensorSpec& spec : specs) {
                    HostTensor<float> tensor{spec.shape, spec.dtype, {}};
                    tensor.values.resize(static_cast<size_t>(spec.shape.numel()));
                    h.tensors[spec.name] = tensor;
                }
                each([&](const TensorSpec& spec, const View& view, int64_t index, int64_t at) {
                    if (spec.role == Role::Output) return;
                    const bool wide = spec.dtype == DType::F32;
                    h[spec.name][index] = wide ? view.as<float>()[at] : to_float(view.as<BF16>()[at]);
                });
                run(h);
                each([&](const TensorSpec& spec, const View& view, int64_t index, int64_t at) {
                    if (spec.role != Role::Output) return;
                    if (spec.dtype == DType::F32) {
                        view.as<float>()[at] = h[spec.name][index];
                    } else {
                        view.as<BF16>()[at] = to_bf16(h[spec.name][index]);
                    }
                });
            }};
}

std::vector<std::pair<std::string, Fault>> faults(const Sizes& s) {
    std::vector<std::pair<std::string, Fault>> all;
    const bool several_keys = s.longest() > 1 && s.window != 1;
    if (several_keys) all.push_back({"sees later keys", {.sees_later_keys = true}});
    if (several_keys && s.head_dim > 1) all.push_back({"no scale", {.no_scale = true}});
    if (s.kv_heads > 1) all.push_back({"the next kv head", {.next_kv_head = true}});
    if (s.window > 0 && s.window < s.longest()) {
        all.push_back({"window one too wide", {.wider = 1}});
        if (s.window > 1) all.push_back({"window one too narrow", {.wider = -1}});
    }
    const auto filled = std::count_if(s.lengths.begin(), s.lengths.end(), [](int64_t n) { return n > 0; });
    if (filled > 1 && s.window != 1) all.push_back({"looks across a boundary", {.one_sequence = true}});
    return all;
}

AttentionShape shape_of(const Views& v, const Sizes& s) {
    return {.cu_seqlens = v["cu_seqlens"],
            .max_seqlen = s.longest(),
            .window = s.window,
            .scale = s.scale(),
            .none_empty = s.none_empty()};
}
AttentionArgs forward_args(const Views& v, const Sizes& s) {
    return {.shape = shape_of(v, s), .q = v["q"], .k = v["k"], .v = v["v"], .out = v["out"], .lse = v["lse"]};
}
AttentionBackwardArgs backward_args(const Views& v, const Sizes& s) {
    return {.shape = shape_of(v, s),
            .q = v["q"],
            .k = v["k"],
            .v = v["v"],
            .out = v["out"],
            .lse = v["lse"],
            .dout = v["dout"],
            .dq = v["dq"],
            .dk = v["dk"],
            .dv = v["dv"]};
}

TensorSpec cu_seqlens_of(const Sizes& s) {
    std::vector<double> ends(1, 0.0);
    for (const int64_t length : s.lengths) ends.push_back(ends.back() + static_cast<double>(length));
    return {.name = "cu_seqlens",
            .shape = {static_cast<int64_t>(ends.size())},
            .dtype = DType::I32,
            .value = [ends](int64_t i, const Philox&) { return ends[static_cast<size_t>(i)]; }};
}

// A tensor over tokens; inputs are NaN past the last sequence, outputs stay as they were there.
TensorSpec token_tensor(const char* name, const Sizes& s, int64_t heads, DType dtype, Role role) {
    const int64_t row = heads * s.head_dim, used = s.used();
    const std::string_view which = name;
    const double factor = which == "q" || which == "k" ? s.magnitude : 1.0;
    const bool slice = s.fused && which != "out" && which != "dout";
    return {.name = name,
            .shape = {s.tokens(), heads, s.head_dim},
            .dtype = dtype,
            .role = role,
            .value =
                [=](int64_t i, const Philox& random) {
                    if (i / row >= used) return std::numeric_limits<double>::quiet_NaN();
                    return factor * random.normal(static_cast<uint64_t>(i));
                },
            .written = [=](int64_t i) { return i / row < used; },
            .row_padding = slice ? (s.heads + 2 * s.kv_heads) * s.head_dim - row : s.row_padding};
}
// Near the log-sums of scores from N(0, 1) where the case gives them instead of forward.
TensorSpec lse_of(const Sizes& s, Role role) {
    const int64_t tokens = s.tokens(), used = s.used(), length = s.longest();
    return {.name = "lse",
            .shape = {s.heads, tokens},
            .role = role,
            .value =
                [=](int64_t i, const Philox&) {
                    return 0.5 + std::log(1.0 + static_cast<double>(i % tokens % length));
                },
            .written = [=](int64_t i) { return i % tokens < used; },
            .row_padding = s.row_padding};
}

Case forward_case(DType dtype, const std::string& label, const Sizes& s, const std::string& group) {
    Case c;
    c.op = "attention";
    c.name = std::string(name(dtype)) + "." + label;
    c.group = group;
    c.dtype = dtype;
    c.tensors = {cu_seqlens_of(s),
                 token_tensor("q", s, s.heads, dtype, Role::Input),
                 token_tensor("k", s, s.kv_heads, dtype, Role::Input),
                 token_tensor("v", s, s.kv_heads, dtype, Role::Input),
                 token_tensor("out", s, s.heads, dtype, Role::Output),
                 lse_of(s, Role::Output)};
    c.run = [=](const Views& v, const Exec& exec) { attention(forward_args(v, s), exec); };
    set_reference(c, [=](auto& h) { forward(h, s); });
    c.cost = [=](const Views& v) { return cost(forward_args(v, s)); };
    for (const auto& [label_of_fault, fault] : faults(s)) {
        c.mutants.push_back(mutant(label_of_fault, c.tensors, s.used(),
                                   [s, fault = fault](Host<float>& h) { forward(h, s, fault); }));
    }
    return c;
}

// Runs forward for out and lse, except in the benchmark.
Case backward_case(DType dtype, const std::string& label, const Sizes& s, const std::string& group) {
    const bool bench = group == "bench";
    Case c;
    c.op = "attention_backward";
    c.name = std::string(name(dtype)) + "." + label;
    c.group = group;
    c.dtype = dtype;
    const Role from_forward = bench ? Role::Input : Role::Output;
    c.tensors = {cu_seqlens_of(s),
                 token_tensor("q", s, s.heads, dtype, Role::Input),
                 token_tensor("k", s, s.kv_heads, dtype, Role::Input),
                 token_tensor("v", s, s.kv_heads, dtype, Role::Input),
                 token_tensor("dout", s, s.heads, dtype, Role::Input),
                 token_tensor("out", s, s.heads, dtype, from_forward),
                 lse_of(s, from_forward),
                 token_tensor("dq", s, s.heads, dtype, Role::Output),
                 token_tensor("dk", s, s.kv_heads, dtype, Role::Output),
                 token_tensor("dv", s, s.kv_heads, dtype, Role::Output)};
    c.run = [=](const Views& v, const Exec& exec) {
        if (!bench) attention(forward_args(v, s), exec);
        attention_backward(backward_args(v, s), exec);
    };
    set_reference(c, [=](auto& h) {
        if (!bench) forward(h, s);
        backward(h, s);
    });
    c.cost = [=](const Views& v) { return cost(backward_args(v, s)); };
    auto wrong = faults(s);
    if (s.longest() > 1 && s.window != 1) wrong.push_back({"no delta", {.no_delta = true}});
    if (s.heads > s.kv_heads) wrong.push_back({"one head of a group", {.first_head_only = true}});
    for (const auto& [label_of_fault, fault] : wrong) {
        c.mutants.push_back(mutant(label_of_fault, c.tensors, s.used(), [s, fault = fault](Host<float>& h) {
            forward(h, s);
            backward(h, s, fault);
        }));
    }
    if (group == "gradient") {
        c.gradient = GradientCheck{.forward = [=](Host<double>& h) { forward(h, s); },
                                   .outputs = {{"out", "dout"}},
                                   .wrt = {{"q", "dq"}, {"k", "dk"}, {"v", "dv"}}};
    }
    return c;
}

struct Named {
    const char* name;
    const char* group;
    Sizes sizes;
};

// Many more borders than sequences, as where their number is a capacity.
Sizes ending_empty(int64_t head_dim, int64_t kv_heads) {
    Sizes s{.lengths = {100, 1, 40}, .padding = 3, .heads = 4, .kv_heads = kv_heads, .head_dim = head_dim};
    s.fused = true;
    s.lengths.resize(120, 0);
    return s;
}

const std::vector<Named>& small() {
    static const std::vector<Named> all = {
        {"one_token", "edge", {.lengths = {1}, .heads = 4, .kv_heads = 2, .head_dim = 16}},
        {"lengths_of_1", "edge", {.lengths = {1, 1, 1, 1, 1}, .heads = 2, .kv_heads = 2, .head_dim = 16}},
        {"head_dim_1", "edge", {.lengths = {7, 3}, .heads = 2, .kv_heads = 1, .head_dim = 1}},
        {"empty_sequences",
         "edge",
         {.lengths = {0, 5, 0, 0, 17, 1, 0},
          .padding = 6,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 33,
          .row_padding = 7}},
        {"ragged",
         "basic",
         {.lengths = {97, 15, 64, 130},
          .padding = 3,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 64,
          .row_padding = 128}},
        {"multi_head.d40", "basic", {.lengths = {100, 33}, .heads = 3, .kv_heads = 3, .head_dim = 40}},
        {"multi_query.d24", "basic", {.lengths = {49, 201}, .heads = 5, .kv_heads = 1, .head_dim = 24}},
        {"d128", "basic", {.lengths = {97}, .heads = 2, .kv_heads = 1, .head_dim = 128}},
        {"d200", "basic", {.lengths = {70, 33}, .padding = 2, .heads = 2, .kv_heads = 1, .head_dim = 200}},
        {"d256.window_40",
         "window",
         {.lengths = {101, 20}, .heads = 4, .kv_heads = 2, .head_dim = 256, .window = 40}},
        {"window_1", "window", {.lengths = {40, 9}, .heads = 2, .kv_heads = 1, .head_dim = 16, .window = 1}},
        {"window_5",
         "window",
         {.lengths = {120, 4, 33}, .heads = 2, .kv_heads = 2, .head_dim = 16, .window = 5}},
        {"window_100",
         "window",
         {.lengths = {50, 330}, .padding = 1, .heads = 2, .kv_heads = 1, .head_dim = 32, .window = 100}},
        {"window_over_length",
         "window",
         {.lengths = {60, 90}, .heads = 2, .kv_heads = 1, .head_dim = 16, .window = 90}},
        {"large_scores",
         "edge",
         {.lengths = {110, 20}, .heads = 2, .kv_heads = 1, .head_dim = 64, .magnitude = 30}},
        // Tiles whose largest scores lie far apart, beyond what exponents can bridge and less.
        {"large_scores.tiles_of_keys.d64",
         "edge",
         {.lengths = {400, 20}, .heads = 2, .kv_heads = 1, .head_dim = 64, .magnitude = 30}},
        {"large_scores.far_apart.d64",
         "edge",
         {.lengths = {20, 400}, .heads = 2, .kv_heads = 1, .head_dim = 64, .magnitude = 5}},
        {"one_long", "basic", {.lengths = {1, 700}, .heads = 2, .kv_heads = 1, .head_dim = 16}},
        {"one_long.window_150",
         "window",
         {.lengths = {650}, .heads = 2, .kv_heads = 1, .head_dim = 16, .window = 150}},
        {"fused.d16",
         "basic",
         {.lengths = {48, 130}, .heads = 4, .kv_heads = 2, .head_dim = 16, .fused = true}},
        {"fused.one_kv_head.d16",
         "basic",
         {.lengths = {70, 1, 64}, .padding = 1, .heads = 3, .kv_heads = 1, .head_dim = 16, .fused = true}},
        {"fused.multi_head.d32",
         "basic",
         {.lengths = {129, 60}, .padding = 5, .heads = 2, .kv_heads = 2, .head_dim = 32, .fused = true}},
        {"fused.d64",
         "basic",
         {.lengths = {128, 1, 100, 27}, .heads = 4, .kv_heads = 2, .head_dim = 64, .fused = true}},
        {"fused.padding.d64",
         "basic",
         {.lengths = {64, 190}, .padding = 150, .heads = 4, .kv_heads = 1, .head_dim = 64, .fused = true}},
        {"fused.multi_head.d64",
         "basic",
         {.lengths = {65, 1, 1, 140},
          .padding = 2,
          .heads = 2,
          .kv_heads = 2,
          .head_dim = 64,
          .fused = true}},
        {"fused.d96",
         "basic",
         {.lengths = {30, 131}, .padding = 1, .heads = 4, .kv_heads = 2, .head_dim = 96, .fused = true}},
        {"fused.d128",
         "basic",
         {.lengths = {1, 140, 33}, .padding = 9, .heads = 4, .kv_heads = 2, .head_dim = 128, .fused = true}},
        {"fused.multi_head.d128",
         "basic",
         {.lengths = {100, 50}, .heads = 2, .kv_heads = 2, .head_dim = 128, .fused = true}},
        {"fused.window_70.d64",
         "window",
         {.lengths = {200, 33},
          .padding = 2,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 64,
          .window = 70,
          .fused = true}},
        {"empty_between.d64",
         "edge",
         {.lengths = {0, 97, 0, 0, 1, 64, 0},
          .padding = 2,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 64,
          .fused = true}},
        {"empty_at_the_end.d64", "edge", ending_empty(64, 2)},
        {"empty_at_the_end.d128", "edge", ending_empty(128, 4)},
        {"tiles_of_keys.d64",
         "basic",
         {.lengths = {300, 1, 129, 385}, .padding = 5, .heads = 4, .kv_heads = 1, .head_dim = 64}},
        {"tiles_of_keys.d128",
         "basic",
         {.lengths = {290, 1, 193}, .padding = 5, .heads = 4, .kv_heads = 2, .head_dim = 128, .fused = true}},
        {"tiles_of_keys.window_150.d64",
         "window",
         {.lengths = {500, 140}, .heads = 2, .kv_heads = 2, .head_dim = 64, .window = 150}},
        {"tiles_of_keys.window_70.d128",
         "window",
         {.lengths = {33, 400}, .heads = 2, .kv_heads = 1, .head_dim = 128, .window = 70}},
        {"large_scores.d128",
         "edge",
         {.lengths = {130, 7}, .heads = 2, .kv_heads = 1, .head_dim = 128, .magnitude = 8}},
        {"many_tiles",
         "basic",
         {.lengths = {100, 190, 97}, .padding = 1, .heads = 18, .kv_heads = 9, .head_dim = 8}},
    };
    return all;
}

}  // namespace

void attention_cases(std::vector<Case>& cases) {
    for (const DType dtype : {DType::F32, DType::BF16}) {
        for (const Named& n : small()) {
            cases.push_back(forward_case(dtype, n.name, n.sizes, n.group));
            cases.push_back(backward_case(dtype, n.name, n.sizes, n.group));
        }
        Sizes sanity{.lengths = std::vector<int64_t>(8, 1024), .heads = 4, .kv_heads = 2, .head_dim = 64};
        cases.push_back(forward_case(dtype, "8x1024x4x64", sanity, "bench"));
        cases.back().bench = true;
        cases.push_back(backward_case(dtype, "8x1024x4x64", sanity, "bench"));
        cases.back().bench = true;
    }
    for (const int64_t head_dim : {64, 128}) {
        const Sizes large{.lengths = {8192, 8192}, .heads = 32, .kv_heads = 8, .head_dim = head_dim};
        const std::string label = "2x8192x32x" + std::to_string(head_dim);
        for (const Case& c : {forward_case(DType::BF16, label, large, "bench"),
                              backward_case(DType::BF16, label, large, "bench")}) {
            cases.push_back(c);
            cases.back().bench = cases.back().large = true;
        }
    }
    const Sizes packed{.lengths = {5, 0, 1, 12}, .padding = 2, .heads = 4, .kv_heads = 2, .head_dim = 6};
    cases.push_back(backward_case(DType::F32, "gradient.packed", packed, "gradient"));
    Sizes windowed = packed;
    windowed.window = 4;
    cases.push_back(backward_case(DType::F32, "gradient.window", windowed, "gradient"));
}

}  // namespace moebius::ops
