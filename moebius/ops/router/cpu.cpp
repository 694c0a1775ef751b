#include "moebius/ops/router/cpu.h"

#include <algorithm>

#include "moebius/ops/router/cpu_lanes.h"

namespace moebius::ops::cpu {
namespace {

// Below every key that a number or NaN gives: an expert that cannot be chosen (any more).
constexpr int32_t kTaken = std::numeric_limits<int32_t>::min();

struct Job {
    RouterOptions options;
    int64_t tokens, experts;
    const float *logits, *bias;
    const uint8_t* valid;
    int32_t* topk_indices;
    float* topk_weights;
    bool wants_probs, wants_z;
    // Per piece; null where nobody asked.
    int32_t *counts, *counted;
    float *prob_sums, *z_sums;
};

// One thread's lane matrices.
struct Work {
    float *logits, *scores, *selection, *prob_sums;  // (E, 16)
    int32_t* keys;                                   // (E, 16)
    int32_t* group_keys;                             // (groups, 16)
    int32_t* indices;                                // (k, 16)
    float *chosen, *weights;                         // (k, 16)

    static int64_t floats(const Job& job) {
        return (5 * job.experts + job.options.num_groups + 3 * job.options.topk) * kLanes;
    }
    MOEBIUS_INLINE Work(const Job& job, float* memory) {
        const int64_t experts = job.experts * kLanes, slots = job.options.topk * kLanes;
        logits = memory;
        scores = logits + experts;
        selection = scores + experts;
        prob_sums = selection + experts;
        keys = reinterpret_cast<int32_t*>(prob_sums + experts);
        group_keys = keys + experts;
        indices = group_keys + job.options.num_groups * kLanes;
        chosen = reinterpret_cast<float*>(indices + slots);
        weights = chosen + slots;
    }
};

// Integers in the order of the floats: −0 equals 0, and NaN is above all, so that it is chosen and the step
// turns out not finite instead of going on without that expert.
MOEBIUS_INLINE I16 order_key(F16 value) {
    const I16 bits = reinterpret_cast<I16>(value + 0.0f);
    const I16 key = bits ^ ((bits >> 31) & 0x7FFFFFFF);
    return select(value != value, I16{} + std::numeric_limits<int32_t>::max(), key);
}

// The row with the largest key, the lowest of equals; its key becomes kTaken.
MOEBIUS_INLINE I16 take_largest(int32_t* keys, int64_t n) {
    I16 best = I16{} + kTaken, index = {};
    for (int64_t e = 0; e < n; ++e) {
        const I16 key = load(keys + e * kLanes);
        const I16 better = key > best;
        best = select(better, key, best);
        index = select(better, I16{} + static_cast<int32_t>(e), index);
    }
    for (int64_t l = 0; l < kLanes; ++l) keys[int64_t{index[l]} * kLanes + l] = kTaken;
    return index;
}

// Takes the experts of groups that are not among the best out of the choice.
MOEBIUS_INLINE void limit_groups(const Job& job, const Work& work) {
    const int64_t groups = job.options.num_groups, size = job.experts / groups;
    for (int64_t g = 0; g < groups; ++g) {
        const F16 none = ops::broadcast(-std::numeric_limits<float>::infinity());
        F16 first = none, second = none;
        for (int64_t e = g * size; e < (g + 1) * size; ++e) {
            const F16 raw = ops::load(work.selection + e * kLanes);
            const F16 value = ops::select(raw != raw, -none, raw);
            second = maximum(second, minimum(first, value));
            first = maximum(first, value);
        }
        store(work.group_keys + g * kLanes, order_key(size > 1 ? first + second : first));
    }
    for (int64_t i = 0; i < job.options.topk_groups; ++i) take_largest(work.group_keys, groups);
    for (int64_t e = 0; e < job.experts; ++e) {
        const I16 chosen = load(work.group_keys + e / size * kLanes) == kTaken;
        store(work.keys + e * kLanes, select(chosen, load(work.keys + e * kLanes), I16{} + kTaken));
    }
}

// work.indices from work.logits; work.scores are those of all experts if `full` was computed.
MOEBIUS_INLINE void choose(const Job& job, const Work& work, const ScoreSum& full) {
    const bool scored = job.bias || job.options.topk_groups < job.options.num_groups;
    const bool sigmoid = job.options.score == RouterScore::Sigmoid;
    const F16 factor = !scored ? F16{} : sigmoid ? ops::exp(full.shift) : 1.0f / full.sum;
    for (int64_t e = 0; e < job.experts; ++e) {
        // Both scores grow with the logit: without a bias it is compared itself, where scores might round to
        // a tie.
        F16 value = ops::load(work.logits + e * kLanes);
        if (scored) {
            const F16 score = ops::load(work.scores + e * kLanes) * factor + (job.bias ? job.bias[e] : 0.0f);
            ops::store(work.selection + e * kLanes, score);
            if (job.bias) value = score;
        }
        store(work.keys + e * kLanes, order_key(value));
    }
    if (job.options.topk_groups < job.options.num_groups) limit_groups(job, work);
    for (int64_t s = 0; s < job.options.topk; ++s)
        store(work.indices + s * kLanes, take_largest(work.keys, job.experts));
}

// work.weights from the logits of the chosen.
MOEBIUS_INLINE void weigh(const Job& job, const Work& work, const ScoreSum& full) {
    const int64_t topk = job.options.topk;
    const bool sigmoid = job.options.score == RouterScore::Sigmoid, normalize = job.options.normalize;
    for (int64_t s = 0; s < topk; ++s)
        ops::store(work.chosen + s * kLanes, pick(work.logits, load(work.indices + s * kLanes)));
    F16 divisor = full.sum;
    if (normalize) {
        divisor = sigmoid ? sigmoid_scores(work.chosen, topk, work.weights).sum
                          : softmax_scores(work.chosen, topk, work.weights).sum;
    }
    for (int64_t s = 0; s < topk; ++s) {
        F16 weight;
        if (normalize) {
            weight = ops::load(work.weights + s * kLanes) / divisor;
        } else if (sigmoid) {
            weight = ops::sigmoid(ops::load(work.chosen + s * kLanes));
        } else {
            weight = ops::exp(ops::load(work.chosen + s * kLanes) - full.shift) / divisor;
        }
        ops::store(work.weights + s * kLanes, weight);
    }
}

struct RouterBody {
    template <Isa>
    MOEBIUS_INLINE static void run(const Job* job_, int64_t piece, float* memory) {
        const Job job = *job_;
        const Work work(job, memory);
        const int64_t experts = job.experts, topk = job.options.topk;
        const bool sigmoid = job.options.score == RouterScore::Sigmoid;
        const bool full = job.wants_probs || job.bias || job.options.topk_groups < job.options.num_groups ||
                          (!sigmoid && (!job.options.normalize || job.wants_z));
        if (job.wants_probs) std::memset(work.prob_sums, 0, static_cast<size_t>(experts) * sizeof(F16));
        int32_t* counts = job.counts + piece * experts;
        F16 z_sum = {};
        int32_t counted_tokens = 0;
        const int64_t end = std::min(job.tokens, (piece + 1) * kPieceTokens);
        for (int64_t first = piece * kPieceTokens; first < end; first += kLanes) {
            const int64_t count = std::min(kLanes, end - first);
            to_lanes(job.logits + first * experts, count, experts, work.logits);
            ScoreSum scores = {};
            if (full)
                scores = sigmoid ? sigmoid_scores(work.logits, experts, work.scores)
                                 : softmax_scores(work.logits, experts, work.scores);
            choose(job, work, scores);
            weigh(job, work, scores);
            from_lanes(work.indices, count, topk, job.topk_indices + first * topk);
            from_lanes(work.weights, count, topk, job.topk_weights + first * topk);

            const I16 counted = counted_lanes(job.valid ? job.valid + first : nullptr, count);
            for (int64_t l = 0; l < count; ++l) {
                if (!counted[l]) continue;
                ++counted_tokens;
                for (int64_t s = 0; s < topk; ++s) ++counts[work.indices[s * kLanes + l]];
            }
            for (int64_t e = 0; e < experts && job.wants_probs; ++e) {
                const F16 probability = ops::load(work.scores + e * kLanes) / scores.sum;
                const F16 total = ops::load(work.prob_sums + e * kLanes);
                ops::store(work.prob_sums + e * kLanes, total + ops::select(counted, probability, F16{}));
            }
            if (job.wants_z) {
                const F16 lse = sigmoid ? log_sum_exp(work.logits, experts) : scores.shift + log(scores.sum);
                z_sum += ops::select(counted, lse * lse, F16{});
            }
        }
        job.counted[piece] = counted_tokens;
        job.z_sums[piece] = sum(z_sum);
        for (int64_t e = 0; e < experts && job.wants_probs; ++e)
            job.prob_sums[piece * experts + e] = sum(ops::load(work.prob_sums + e * kLanes));
    }
};

// out[e] += Σ_pieces parts[piece, e], in double and in order.
template <class T>
void add_parts(const View& out, const T* parts, int64_t pieces, int64_t width) {
    if (!out) return;
    for (int64_t e = 0; e < width; ++e) {
        double total = static_cast<double>(out.as<float>()[e]);
        for (int64_t piece = 0; piece < pieces; ++piece)
            total += static_cast<double>(parts[piece * width + e]);
        out.as<float>()[e] = static_cast<float>(total);
    }
}

}  // namespace

void router(const RouterArgs& args, const Exec& exec) {
    Job job{};
    job.options = args.options;
    job.tokens = args.logits.size(0);
    job.experts = args.logits.size(1);
    job.logits = args.logits.as<float>();
    job.bias = args.bias ? args.bias.as<float>() : nullptr;
    job.valid = args.valid ? args.valid.as<uint8_t>() : nullptr;
    job.topk_indices = args.topk_indices.as<int32_t>();
    job.topk_weights = args.topk_weights.as<float>();
    job.wants_probs = static_cast<bool>(args.prob_sums);
    job.wants_z = static_cast<bool>(args.z_sum);

    const int64_t pieces = ceil_div(job.tokens, kPieceTokens), cells = pieces * job.experts;
    const int64_t work = Work::floats(job) * exec.threads->size();
    const Scratch scratch("router", static_cast<size_t>(work + 2 * cells + 2 * pieces) * sizeof(float), exec);
    auto* lanes = scratch.as<float>();
    job.prob_sums = lanes + work;
    job.z_sums = job.prob_sums + cells;
    job.counts = reinterpret_cast<int32_t*>(job.z_sums + pieces);
    job.counted = job.counts + cells;
    std::memset(job.counts, 0, static_cast<size_t>(cells) * sizeof(int32_t));
    exec.parallel(pieces, [&](int64_t piece, int thread) {
        with_isa<RouterBody>(exec.device->isa(), &job, piece, lanes + Work::floats(job) * thread);
    });
    add_parts(args.counts, job.counts, pieces, job.experts);
    add_parts(args.prob_sums, job.prob_sums, pieces, job.experts);
    add_parts(args.z_sum, job.z_sums, pieces, 1);
    add_parts(args.tokens, job.counted, pieces, 1);
}

}  // namespace moebius::ops::cpu
