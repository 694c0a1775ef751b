// A small decoder on the CPU with a batch of random tokens, for the tests of nn/.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "moebius/base/philox.h"
#include "moebius/comm/registry.h"
#include "moebius/nn/decoder.h"

namespace moebius::nn {

struct SmallModel {
    Device device = Device::cpu_from_environment();
    HostArena pool;
    ThreadPool threads{2};
    std::unique_ptr<Communicator> world = make_communicator("self");
    ParameterSet parameters;
    std::unique_ptr<Decoder> decoder;
    Run run;
    std::vector<Tensor> owned;

    static DecoderOptions options() {
        DecoderOptions o;
        o.vocab = 40;
        o.layers = 2;
        o.layer.attention = {
            .hidden = 32, .heads = 4, .kv_heads = 2, .head_dim = 8, .init_std = 0.3, .out_init_std = 0.3};
        o.layer.moe.experts = {
            .experts = 4, .hidden = 32, .intermediate = 24, .init_std = 0.3, .down_init_std = 0.3};
        o.layer.moe.router = {.topk = 2};
        o.layer.moe.router_init_std = 0.3;
        o.embedding_init_std = 1.0;
        o.head_init_std = 0.3;
        return o;
    }

    explicit SmallModel(const DecoderOptions& o, DType dtype = DType::F32, DType grad_dtype = DType::F32) {
        run.exec = {.device = &device, .pool = &pool, .threads = &threads};
        run.dtype = dtype;
        run.world = world.get();
        decoder = std::make_unique<Decoder>(parameters, o);
        parameters.place({.dtype = dtype, .grad_dtype = grad_dtype}, run.exec);
        decoder->place(run.exec);
        parameters.fill(7, run.exec);
        const auto scalar = [&](DType type) {
            owned.push_back(Tensor::zeros("scalar", {1}, type, run.exec));
            return owned.back().view();
        };
        run.scalars.bad = scalar(DType::I32);
        run.scalars.one = scalar(DType::F32);
        run.scalars.aux_scale = scalar(DType::F32);
        *run.scalars.one.as<float>() = 1;
        *run.scalars.aux_scale.as<float>() = 1;
    }

    View integers(const std::vector<int32_t>& values) {
        owned.push_back(Tensor::empty("ints", {static_cast<int64_t>(values.size())}, DType::I32, run.exec));
        copy_from_host(owned.back(), values.data(), run.exec);
        return owned.back();
    }
    View floats(int64_t count) {
        owned.push_back(Tensor::zeros("floats", {count}, DType::F32, run.exec));
        return owned.back();
    }

    // Sequences of these lengths one after the other; every token has a target but each sequence's last.
    void set_batch(const std::vector<int32_t>& lengths, uint64_t seed) {
        const Philox random(seed, "tokens");
        std::vector<int32_t> tokens, targets, positions, borders{0};
        int32_t longest = 0;
        for (const int32_t length : lengths) {
            for (int32_t i = 0; i < length; ++i) {
                tokens.push_back(static_cast<int32_t>(random.below(tokens.size(), 40)));
                positions.push_back(i);
            }
            borders.push_back(borders.back() + length);
            longest = std::max(longest, length);
        }
        for (size_t i = 0; i < tokens.size(); ++i) {
            const bool last = i + 1 == tokens.size() || positions[i + 1] == 0;
            targets.push_back(last ? -100 : tokens[i + 1]);
        }
        run.batch = {.tokens = integers(tokens),
                     .targets = integers(targets),
                     .positions = integers(positions),
                     .cu_seqlens = integers(borders),
                     .token_count = integers({static_cast<int32_t>(tokens.size())}),
                     .max_seqlen = longest,
                     .none_empty = true};
    }

    struct Outcome {
        float loss = 0, aux = 0, z = 0;
        std::vector<float> gradients;
    };
    // Forward and backward; gradients of the sum over tokens plus the auxiliary losses. Not `fresh`: added to
    // those that are there.
    Outcome step(bool fresh = true) {
        Outcome out;
        const int64_t tokens = run.batch.tokens.numel();
        const Tensor token_loss = Tensor::zeros("token_loss", {tokens}, DType::F32, run.exec);
        const Tensor scalars = Tensor::zeros("outputs", {3}, DType::F32, run.exec);
        if (fresh) parameters.begin_step();
        decoder->reset_statistics(run);
        DecoderContext context =
            decoder->forward({.loss = {.token_loss = token_loss, .loss_sum = scalars.view().rows(0, 1)},
                              .aux_loss = scalars.view().rows(1, 1),
                              .z_loss = scalars.view().rows(2, 1)},
                             run);
        decoder->backward(std::move(context), run);
        parameters.finish_gradients(run.exec);
        const float* s = scalars.view().as<float>();
        out.loss = s[0];
        out.aux = s[1];
        out.z = s[2];
        const View g = parameters.gradients();
        for (int64_t i = 0; i < g.numel(); ++i)
            out.gradients.push_back(g.dtype == DType::BF16 ? to_float(g.as<BF16>()[i]) : g.as<float>()[i]);
        return out;
    }
    // Value of the objective alone, for central differences.
    double objective() {
        const Outcome out = step();
        return static_cast<double>(out.loss) + static_cast<double>(out.aux) + static_cast<double>(out.z);
    }
};

}  // namespace moebius::nn
