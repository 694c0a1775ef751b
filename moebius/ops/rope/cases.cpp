#include <algorithm>
#include <cmath>

#include "moebius/ops/case.h"
#include "moebius/ops/rope/rope.h"

namespace moebius::ops {
namespace {

struct Sizes {
    int64_t tokens, heads, head_dim;
    int64_t sequence = 0;        // positions start again after so many tokens; 0: never
    int64_t first_position = 0;  // of every sequence
    int64_t row_padding = 0;     // between tokens
    float theta = 1e4f;
    bool inverse = false, in_place = false;
};

// out[j] + i·out[j + d/2] = (x[j] + i·x[j + d/2]) · e^(±i·angle); the angle is an fp32 number in both runs,
// as the op promises.
template <class H>
void reference(H& h, const Sizes& s, const char* from, const char* to, bool inverse) {
    using Real = std::decay_t<decltype(h[from][0])>;
    const int64_t pairs = s.head_dim / 2;
    for (int64_t t = 0; t < s.tokens; ++t) {
        for (int64_t j = 0; j < pairs; ++j) {
            const float exponent = static_cast<float>(2 * j) / static_cast<float>(s.head_dim);
            const float angle =
                static_cast<float>(h["positions"].integer(t)) * (1.0f / std::pow(s.theta, exponent));
            const Real cosine = std::cos(static_cast<Real>(angle));
            const Real sine = std::sin(static_cast<Real>(angle)) * static_cast<Real>(inverse ? -1 : 1);
            for (int64_t head = 0; head < s.heads; ++head) {
                const Real a = h[from].at(t, head, j), b = h[from].at(t, head, pairs + j);
                h[to].at(t, head, j) = a * cosine - b * sine;
                h[to].at(t, head, pairs + j) = b * cosine + a * sine;
            }
        }
    }
}

Case rope_case(DType dtype, const std::string& label, const Sizes& s, const std::string& group = "basic") {
    Case c;
    c.op = "rope";
    c.name = std::string(name(dtype)) + "." + label;
    c.group = group;
    c.dtype = dtype;
    const Shape shape{s.tokens, s.heads, s.head_dim};
    const char* out = s.in_place ? "x" : "out";
    c.tensors = {{.name = "positions",
                  .shape = {s.tokens},
                  .dtype = DType::I32,
                  .value = [s](int64_t i, const Philox&) {
                      return static_cast<double>(s.first_position + (s.sequence ? i % s.sequence : i));
                  }}};
    c.tensors.push_back({.name = "x",
                         .shape = shape,
                         .dtype = dtype,
                         .role = s.in_place ? Role::InOut : Role::Input,
                         .row_padding = s.row_padding});
    if (!s.in_place) {
        c.tensors.push_back({.name = "out",
                             .shape = shape,
                             .dtype = dtype,
                             .role = Role::Output,
                             .row_padding = s.row_padding});
    }
    const auto args = [=](const Views& v) {
        return RopeArgs{
            .x = v["x"], .positions = v["positions"], .out = v[out], .theta = s.theta, .inverse = s.inverse};
    };
    c.run = [=](const Views& v, const Exec& exec) { rope(args(v), exec); };
    set_reference(c, [=](auto& h) { reference(h, s, "x", out, s.inverse); });
    c.cost = [=](const Views& v) { return cost(args(v)); };
    if (s.tokens > 1) {
        c.mutants = {{"rotates the other way",
                      [=](const Views& v, const Exec& exec) {
                          RopeArgs wrong = args(v);
                          wrong.inverse = !wrong.inverse;
                          rope(wrong, exec);
                      }},
                     {"another theta", [=](const Views& v, const Exec& exec) {
                          RopeArgs wrong = args(v);
                          wrong.theta = s.theta * 2;
                          rope(wrong, exec);
                      }}};
        if (s.head_dim == 2) c.mutants.pop_back();  // its one frequency is 1 for any theta
    }
    return c;
}

// The inverse rotation as the gradient of the forward one.
Case backward_case() {
    const Sizes s{.tokens = 13, .heads = 3, .head_dim = 10, .sequence = 5, .inverse = true};
    Case c = rope_case(DType::F32, "backward.13x3x10", s, "gradient");
    c.tensors.push_back({.name = "forward_x", .shape = {s.tokens, s.heads, s.head_dim}});
    c.gradient = GradientCheck{.forward =
                                   [=](Host<double>& h) {
                                       h.tensors["y"] = h["forward_x"];
                                       reference(h, s, "forward_x", "y", false);
                                   },
                               .outputs = {{"y", "x"}},
                               .wrt = {{"forward_x", "out"}}};
    return c;
}

// Queries and keys side by side in one buffer, as a fused projection leaves them, rotated where they lie.
Case fused_projection_case(DType dtype) {
    const Sizes s{.tokens = 21, .heads = 5, .head_dim = 16, .sequence = 8, .in_place = true};
    Case c = rope_case(dtype, "fused_projection", s, "edge");
    c.mutants.clear();
    c.tensors[1].shape = {s.tokens, s.heads + 2, s.head_dim};
    c.run = [=](const Views& v, const Exec& exec) {
        View x = v["x"];
        x.shape = {s.tokens, s.heads, s.head_dim};
        rope({.x = x, .positions = v["positions"], .out = x}, exec);
    };
    set_reference(c, [=](auto& h) { reference(h, s, "x", "x", false); });
    return c;
}

}  // namespace

void rope_cases(std::vector<Case>& cases) {
    for (const DType dtype : {DType::F32, DType::BF16}) {
        cases.push_back(rope_case(dtype, "1x1x2", {.tokens = 1, .heads = 1, .head_dim = 2}, "edge"));
        cases.push_back(rope_case(dtype, "17x3x2", {.tokens = 17, .heads = 3, .head_dim = 2}, "edge"));
        cases.push_back(
            rope_case(dtype, "33x2x30", {.tokens = 33, .heads = 2, .head_dim = 30, .sequence = 15}));
        cases.push_back(
            rope_case(dtype, "33x2x34", {.tokens = 33, .heads = 2, .head_dim = 34, .theta = 1e6f}));
        cases.push_back(
            rope_case(dtype, "150x4x64", {.tokens = 150, .heads = 4, .head_dim = 64, .sequence = 70}));
        cases.push_back(rope_case(
            dtype, "inverse.70x4x64",
            {.tokens = 70, .heads = 4, .head_dim = 64, .sequence = 33, .row_padding = 24, .inverse = true}));
        cases.push_back(rope_case(
            dtype, "in_place.40x2x48",
            {.tokens = 40, .heads = 2, .head_dim = 48, .sequence = 16, .row_padding = 5, .in_place = true}));
        cases.push_back(rope_case(dtype, "far_positions.20x2x64",
                                  {.tokens = 20, .heads = 2, .head_dim = 64, .first_position = 131000},
                                  "edge"));
        cases.push_back(fused_projection_case(dtype));
        Case bench = rope_case(dtype, "8192x4x64",
                               {.tokens = 8192, .heads = 4, .head_dim = 64, .sequence = 1024}, "bench");
        bench.bench = true;
        cases.push_back(bench);
    }
    cases.push_back(rope_case(DType::BF16, "16384x32x128",
                              {.tokens = 16384, .heads = 32, .head_dim = 128, .sequence = 8192}, "bench"));
    cases.back().bench = cases.back().large = true;
    cases.push_back(backward_case());
}

}  // namespace moebius::ops
