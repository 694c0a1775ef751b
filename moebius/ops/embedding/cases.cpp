#include "moebius/ops/embedding/embedding.h"

#include "moebius/ops/case.h"

namespace moebius::ops {
namespace {

enum class Ids { Random, AllOne, FirstFew, Last, OneBad };

struct Setup {
    DType dtype = DType::F32;
    DType table_grad = DType::F32;
    int64_t tokens = 0, vocabulary = 0, hidden = 0;
    Ids ids = Ids::Random;
    int64_t padding_idx = -1;
    float beta = 0;
    int64_t row_padding = 0;
    bool bench = false;

    std::string label() const {
        const char* kinds[] = {"", ".all_to_one", ".few", ".last", ".one_bad"};
        return std::string(name(dtype)) + "." + std::to_string(tokens) + "of" + std::to_string(vocabulary) +
               "x" + std::to_string(hidden) + kinds[static_cast<int>(ids)] +
               (padding_idx >= 0 ? ".padding" + std::to_string(padding_idx) : "") +
               (table_grad == DType::F32 ? "" : ".to_" + std::string(name(table_grad))) +
               (beta != 0 ? ".accumulate" : "") + (row_padding ? ".strided" : "");
    }
    TensorSpec ids_tensor() const {
        const Setup s = *this;
        const auto value = [s](int64_t i, const Philox& random) -> double {
            const auto below = [&](int64_t n) {
                return static_cast<double>(random.below(static_cast<uint64_t>(i), static_cast<uint64_t>(n)));
            };
            if (s.ids == Ids::AllOne) return static_cast<double>(s.vocabulary / 2);
            if (s.ids == Ids::FirstFew) return below(std::min<int64_t>(4, s.vocabulary));
            if (s.ids == Ids::Last) return static_cast<double>(s.vocabulary - 1);
            if (s.ids == Ids::OneBad && i == s.tokens / 2) return static_cast<double>(s.vocabulary);
            if (s.ids == Ids::OneBad && i == s.tokens / 3) return -1.0;
            return below(s.vocabulary);
        };
        return {.name = "ids", .shape = {tokens}, .dtype = DType::I32, .value = value};
    }
    Case base(const char* op) const {
        Case c;
        c.op = op;
        c.name = label();
        c.group = bench ? "bench" : ids == Ids::Random && !row_padding && tokens > 1 ? "basic" : "edge";
        c.dtype = dtype;
        c.bench = bench;
        return c;
    }
};

template <class Host>
int64_t row_of(Host& h, int64_t t, int64_t vocabulary) {
    const int64_t id = h["ids"].integer(t);
    return id >= 0 && id < vocabulary ? id : 0;
}

Case forward_case(const Setup& s) {
    Case c = s.base("embedding");
    c.tensors = {
        s.ids_tensor(),
        {.name = "table", .shape = {s.vocabulary, s.hidden}, .dtype = s.dtype, .row_padding = s.row_padding},
        {.name = "out",
         .shape = {s.tokens, s.hidden},
         .dtype = s.dtype,
         .role = Role::Output,
         .exact = true,
         .row_padding = s.row_padding},
        {.name = "bad",
         .shape = {1},
         .dtype = DType::I32,
         .role = Role::InOut,
         .value = [](int64_t, const Philox&) { return 0.0; },
         .exact = true}};
    c.run = [](const Views& v, const Exec& exec) {
        embedding({.ids = v["ids"], .table = v["table"], .out = v["out"], .bad = v["bad"]}, exec);
    };
    c.cost = [](const Views& v) {
        return cost(EmbeddingArgs{.ids = v["ids"], .table = v["table"], .out = v["out"], .bad = v["bad"]});
    };
    set_reference(c, [=](auto& h) {
        for (int64_t t = 0; t < s.tokens; ++t) {
            const int64_t id = h["ids"].integer(t);
            if (id < 0 || id >= s.vocabulary) h["bad"][0] = 1;
            for (int64_t i = 0; i < s.hidden; ++i)
                h["out"].at(t, i) = h["table"].at(row_of(h, t, s.vocabulary), i);
        }
    });
    if (s.ids == Ids::OneBad) {
        c.mutants = {{"says nothing of a bad id", [](const Views& v, const Exec& exec) {
                          embedding({.ids = v["ids"], .table = v["table"], .out = v["out"]}, exec);
                      }}};
    } else if (s.tokens > 1) {
        c.mutants = {{"loses the last token", [=](const Views& v, const Exec& exec) {
                          embedding({.ids = v["ids"].rows(0, s.tokens - 1),
                                     .table = v["table"],
                                     .out = v["out"].rows(0, s.tokens - 1)},
                                    exec);
                      }}};
    }
    return c;
}

Case backward_case(const Setup& s) {
    Case c = s.base("embedding_backward");
    c.tensors = {
        s.ids_tensor(),
        {.name = "dout", .shape = {s.tokens, s.hidden}, .dtype = s.dtype, .row_padding = s.row_padding},
        {.name = "dtable",
         .shape = {s.vocabulary, s.hidden},
         .dtype = s.table_grad,
         .role = s.beta != 0 ? Role::InOut : Role::Output,
         .row_padding = s.row_padding}};
    const auto args = [=](const Views& v) {
        return EmbeddingBackwardArgs{.ids = v["ids"],
                                     .dout = v["dout"],
                                     .dtable = v["dtable"],
                                     .padding_idx = s.padding_idx,
                                     .beta = s.beta};
    };
    c.run = [=](const Views& v, const Exec& exec) { embedding_backward(args(v), exec); };
    c.cost = [=](const Views& v) { return cost(args(v)); };
    set_reference(c, [=](auto& h) {
        auto& dtable = h["dtable"];
        using Real = std::decay_t<decltype(dtable[0])>;
        std::vector<Real> sums(static_cast<size_t>(s.vocabulary * s.hidden));
        for (int64_t t = 0; t < s.tokens; ++t) {
            const int64_t row = row_of(h, t, s.vocabulary);
            if (row == s.padding_idx) continue;
            for (int64_t i = 0; i < s.hidden; ++i)
                sums[static_cast<size_t>(row * s.hidden + i)] += h["dout"].at(t, i);
        }
        for (int64_t i = 0; i < s.vocabulary * s.hidden; ++i) {
            dtable[i] = (s.beta != 0 ? static_cast<Real>(s.beta) * dtable[i] : Real(0)) +
                        sums[static_cast<size_t>(i)];
        }
    });
    if (s.padding_idx >= 0) {
        c.mutants.push_back({"gives the padding a gradient", [=](const Views& v, const Exec& exec) {
                                 EmbeddingBackwardArgs a = args(v);
                                 a.padding_idx = -1;
                                 embedding_backward(a, exec);
                             }});
    }
    if (s.tokens > 1) {
        c.mutants.push_back({"loses the first token", [=](const Views& v, const Exec& exec) {
                                 EmbeddingBackwardArgs a = args(v);
                                 a.ids = a.ids.rows(1, s.tokens - 1);
                                 a.dout = a.dout.rows(1, s.tokens - 1);
                                 embedding_backward(a, exec);
                             }});
    }
    if (!s.bench && s.padding_idx < 0 && s.beta == 0) {
        const auto forward = [=](Host<double>& h) {
            h.tensors["out"] = HostTensor<double>{{s.tokens, s.hidden}, DType::F32, {}};
            h["out"].values.resize(static_cast<size_t>(s.tokens * s.hidden));
            for (int64_t t = 0; t < s.tokens; ++t) {
                for (int64_t i = 0; i < s.hidden; ++i)
                    h["out"].at(t, i) = h["table"].at(row_of(h, t, s.vocabulary), i);
            }
        };
        // The table itself is no argument of the backward; the check needs one to move along.
        c.tensors.push_back({.name = "table", .shape = {s.vocabulary, s.hidden}});
        c.gradient =
            GradientCheck{.forward = forward, .outputs = {{"out", "dout"}}, .wrt = {{"table", "dtable"}}};
    }
    return c;
}

}  // namespace

void embedding_cases(std::vector<Case>& cases) {
    for (const DType dtype : {DType::F32, DType::BF16}) {
        for (const Setup& shape : std::vector<Setup>{
                 {.tokens = 1, .vocabulary = 1, .hidden = 1},
                 {.tokens = 1, .vocabulary = 5, .hidden = 33},
                 {.tokens = 15, .vocabulary = 7, .hidden = 16},
                 {.tokens = 33, .vocabulary = 256, .hidden = 17},
                 {.tokens = 200, .vocabulary = 11, .hidden = 100},
                 {.tokens = 90, .vocabulary = 3000, .hidden = 72},
                 {.tokens = 129, .vocabulary = 9, .hidden = 64, .ids = Ids::AllOne},
                 {.tokens = 300, .vocabulary = 40, .hidden = 47, .ids = Ids::FirstFew},
                 {.tokens = 17, .vocabulary = 1025, .hidden = 65, .ids = Ids::Last},
                 {.tokens = 21, .vocabulary = 6, .hidden = 20, .ids = Ids::OneBad},
                 {.tokens = 50, .vocabulary = 13, .hidden = 70, .row_padding = 5},
             }) {
            Setup s = shape;
            s.dtype = dtype;
            cases.push_back(forward_case(s));
            cases.push_back(backward_case(s));
            s.beta = s.tokens % 2 ? 1.0f : 0.5f;
            cases.push_back(backward_case(s));
            s.table_grad = DType::BF16;
            cases.push_back(backward_case(s));
            s.beta = 0;
            cases.push_back(backward_case(s));
        }
        Setup padded{.dtype = dtype, .tokens = 60, .vocabulary = 8, .hidden = 40, .padding_idx = 3};
        cases.push_back(backward_case(padded));
        padded.beta = 1;
        cases.push_back(backward_case(padded));
        padded.padding_idx = 0;
        cases.push_back(backward_case(padded));
        padded.table_grad = DType::BF16;
        cases.push_back(backward_case(padded));
        Setup bench{.dtype = dtype, .tokens = 8192, .vocabulary = 256, .hidden = 256, .bench = true};
        cases.push_back(forward_case(bench));
        bench.beta = 1;
        cases.push_back(backward_case(bench));
        bench.ids = Ids::FirstFew;  // nucleotides
        cases.push_back(backward_case(bench));
    }
}

}  // namespace moebius::ops
