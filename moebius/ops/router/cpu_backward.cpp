// The router's Jacobian, and what the auxiliary losses send back through all of a token's logits.
#include <algorithm>

#include "moebius/ops/router/cpu.h"
#include "moebius/ops/router/cpu_lanes.h"

namespace moebius::ops::cpu {
namespace {

struct Job {
    RouterOptions options;
    int64_t tokens, experts;
    const float* logits;
    const uint8_t* valid;
    const int32_t* topk_indices;
    const float *topk_weights, *dweights, *dprobs;
    bool wants_z;
    float dz;
    float* dlogits;
};

// One thread's lane matrices.
struct Work {
    float *logits, *scores, *dlogits;  // (E, 16)
    int32_t* indices;                  // (k, 16)
    float *weights, *dweights;         // (k, 16)

    static int64_t floats(const Job& job) { return 3 * (job.experts + job.options.topk) * kLanes; }
    MOEBIUS_INLINE Work(const Job& job, float* memory) {
        const int64_t rows = job.experts * kLanes, slots = job.options.topk * kLanes;
        logits = memory;
        scores = logits + rows;
        dlogits = scores + rows;
        indices = reinterpret_cast<int32_t*>(dlogits + rows);
        weights = reinterpret_cast<float*>(indices + slots);
        dweights = weights + slots;
    }
};

// Σ_s weights · dweights.
MOEBIUS_INLINE F16 weighted_upstream(const Job& job, const Work& work) {
    F16 total = {};
    for (int64_t s = 0; s < job.options.topk; ++s)
        total += ops::load(work.weights + s * kLanes) * ops::load(work.dweights + s * kLanes);
    return total;
}

MOEBIUS_INLINE void add_to_chosen(const Work& work, I16 index, F16 gradient) {
    for (int64_t l = 0; l < kLanes; ++l) work.dlogits[int64_t{index[l]} * kLanes + l] += gradient[l];
}

// What weights send to the logits of the chosen. With w the weights, g their gradients, Σ = Σ_s w_s g_s:
// normalized softmax w (g − Σ), normalized sigmoid w (g − Σ)(1 − σ), sigmoid w g (1 − σ).
MOEBIUS_INLINE void through_chosen(const Job& job, const Work& work, F16 upstream) {
    const bool sigmoid = job.options.score == RouterScore::Sigmoid;
    for (int64_t s = 0; s < job.options.topk; ++s) {
        const I16 index = load(work.indices + s * kLanes);
        F16 gradient = ops::load(work.dweights + s * kLanes);
        if (job.options.normalize) gradient -= upstream;
        gradient *= ops::load(work.weights + s * kLanes);
        if (sigmoid) gradient *= ops::sigmoid(-pick(work.logits, index));
        add_to_chosen(work, index, gradient);
    }
}

// What goes through all experts' softmax: p_e times, from unnormalized softmax weights g_e − Σ, from
// prob_sums dP_e − Σ_e p dP, from the z loss 2 · lse · dz; the last two for tokens that count. On entry
// dlogits holds the g_e, or zeros.
MOEBIUS_INLINE void through_softmax(const Job& job, const Work& work, F16 upstream, I16 counted, bool probs) {
    const ScoreSum sums = softmax_scores(work.logits, job.experts, work.scores);
    F16 mean = {};
    for (int64_t e = 0; e < job.experts; ++e) {
        const F16 p = ops::load(work.scores + e * kLanes) / sums.sum;
        if (probs) mean += p * job.dprobs[e];
        ops::store(work.scores + e * kLanes, p);
    }
    F16 z = {};
    if (job.wants_z) z = ops::select(counted, 2.0f * job.dz * (sums.shift + log(sums.sum)), F16{});
    for (int64_t e = 0; e < job.experts; ++e) {
        F16 gradient = ops::load(work.dlogits + e * kLanes) - upstream;
        if (probs) gradient += ops::select(counted, job.dprobs[e] - mean, F16{});
        ops::store(work.dlogits + e * kLanes, ops::load(work.scores + e * kLanes) * (gradient + z));
    }
}

// q_e = σ_e / Σσ: q_e (1 − σ_e)(dP_e − Σ_e q dP), for tokens that count.
MOEBIUS_INLINE void through_sigmoid(const Job& job, const Work& work, I16 counted) {
    const ScoreSum sums = sigmoid_scores(work.logits, job.experts, work.scores);
    F16 mean = {};
    for (int64_t e = 0; e < job.experts; ++e)
        mean += ops::load(work.scores + e * kLanes) / sums.sum * job.dprobs[e];
    for (int64_t e = 0; e < job.experts; ++e) {
        const F16 q = ops::load(work.scores + e * kLanes) / sums.sum;
        const F16 rest = ops::sigmoid(-ops::load(work.logits + e * kLanes));
        const F16 gradient = ops::select(counted, q * rest * (job.dprobs[e] - mean), F16{});
        ops::store(work.dlogits + e * kLanes, ops::load(work.dlogits + e * kLanes) + gradient);
    }
}

struct BackwardBody {
    template <Isa>
    MOEBIUS_INLINE static void run(const Job* job_, int64_t piece, float* memory) {
        const Job job = *job_;
        const Work work(job, memory);
        const int64_t experts = job.experts, topk = job.options.topk;
        const bool sigmoid = job.options.score == RouterScore::Sigmoid;
        const bool softmax_probs = job.dprobs && !sigmoid;
        const bool softmax_weights = !sigmoid && !job.options.normalize;
        const int64_t end = std::min(job.tokens, (piece + 1) * kPieceTokens);
        for (int64_t first = piece * kPieceTokens; first < end; first += kLanes) {
            const int64_t count = std::min(kLanes, end - first);
            to_lanes(job.logits + first * experts, count, experts, work.logits);
            to_lanes(job.topk_indices + first * topk, count, topk, work.indices);
            to_lanes(job.topk_weights + first * topk, count, topk, work.weights);
            to_lanes(job.dweights + first * topk, count, topk, work.dweights);
            std::memset(work.dlogits, 0, static_cast<size_t>(experts) * sizeof(F16));
            const F16 upstream = weighted_upstream(job, work);
            const I16 counted = counted_lanes(job.valid ? job.valid + first : nullptr, count);
            if (softmax_weights) {
                for (int64_t s = 0; s < topk; ++s)
                    add_to_chosen(work, load(work.indices + s * kLanes),
                                  ops::load(work.dweights + s * kLanes));
            }
            if (softmax_weights || softmax_probs || job.wants_z)
                through_softmax(job, work, softmax_weights ? upstream : F16{}, counted, softmax_probs);
            if (sigmoid && job.dprobs) through_sigmoid(job, work, counted);
            if (!softmax_weights) through_chosen(job, work, upstream);
            from_lanes(work.dlogits, count, experts, job.dlogits + first * experts);
        }
    }
};

}  // namespace

void router_backward(const RouterBackwardArgs& args, const Exec& exec) {
    const Job job{.options = args.options,
                  .tokens = args.logits.size(0),
                  .experts = args.logits.size(1),
                  .logits = args.logits.as<float>(),
                  .valid = args.valid ? args.valid.as<uint8_t>() : nullptr,
                  .topk_indices = args.topk_indices.as<int32_t>(),
                  .topk_weights = args.topk_weights.as<float>(),
                  .dweights = args.dweights.as<float>(),
                  .dprobs = args.dprobs ? args.dprobs.as<float>() : nullptr,
                  .wants_z = static_cast<bool>(args.dz),
                  .dz = args.dz ? *args.dz.as<float>() : 0,
                  .dlogits = args.dlogits.as<float>()};
    const int64_t work = Work::floats(job);
    const Scratch scratch("router backward", static_cast<size_t>(work * exec.threads->size()) * sizeof(float),
                          exec);
    auto* lanes = scratch.as<float>();
    exec.parallel(ceil_div(job.tokens, kPieceTokens), [&](int64_t piece, int thread) {
        with_isa<BackwardBody>(exec.device->isa(), &job, piece, lanes + work * thread);
    });
}

}  // namespace moebius::ops::cpu
