// A step's batch of tokens that a test chooses, and a small model for it.
#pragma once

#include <string>
#include <vector>

#include "moebius/config/model_config.h"
#include "moebius/data/batch.h"

namespace moebius::train {

struct TokenBatch {
    int64_t rows, length;
    std::vector<int32_t> tokens, targets, positions, borders;
    std::vector<uint8_t> valid;
    data::StepBatch step;

    // `alike`: the same token everywhere, so that all copies route alike; else all different ones.
    TokenBatch(bool alike, int64_t rows, int64_t length) : rows(rows), length(length) {
        const int64_t count = rows * length;
        valid.assign(static_cast<size_t>(count), 1);
        for (int64_t i = 0; i < count; ++i) {
            tokens.push_back(alike ? 7 : static_cast<int32_t>(i % 251));
            targets.push_back(i % length + 1 == length ? data::kIgnore : static_cast<int32_t>(i % 4));
            positions.push_back(static_cast<int32_t>(i % length));
        }
        for (int64_t row = 0; row <= rows; ++row) borders.push_back(static_cast<int32_t>(row * length));
        data::MicroBatch micro;
        micro.tokens = tokens;
        micro.targets = targets;
        micro.positions = positions;
        micro.valid = valid;
        micro.cu_seqlens = micro.cu_seqlens_capacity = borders;
        micro.max_seqlen = static_cast<int32_t>(length);
        micro.labels = rows * (length - 1);
        step.labels = micro.labels;
        step.tokens = step.real_tokens = count;
        step.micro = {micro};
    }
    TokenBatch(const TokenBatch&) = delete;
    TokenBatch& operator=(const TokenBatch&) = delete;
    data::BatchShape shape() const {
        return {.rows = rows, .capacity = rows * length, .max_seqlen = length, .max_pieces = rows};
    }
};

struct SmallSizes {
    int64_t hidden = 64, intermediate = 96, heads = 4, kv_heads = 2, experts = 4, topk = 1, vocab = 256;
};

inline config::ModelConfig small_config(const SmallSizes& s = {}) {
    const auto member = [](const char* key, int64_t value) {
        return ", \"" + std::string(key) + "\": " + std::to_string(value);
    };
    return config::ModelConfig::parse(
        "{\"model_type\": \"mixtral\", \"num_hidden_layers\": 2" + member("hidden_size", s.hidden) +
            member("intermediate_size", s.intermediate) + member("num_attention_heads", s.heads) +
            member("num_key_value_heads", s.kv_heads) + member("num_local_experts", s.experts) +
            member("num_experts_per_tok", s.topk) + member("vocab_size", s.vocab) + "}",
        "config.json");
}

}  // namespace moebius::train
