// A small model's state, cut into ranks, every element of which says what it is; and scratch folders.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "moebius/base/error.h"
#include "moebius/checkpoint/store.h"

namespace moebius::checkpoint::testing {

class ScratchFolder {
  public:
    ScratchFolder() {
        // In memory where that exists: thousands of fsyncs.
        const Path memory = "/dev/shm";
        const bool usable = ::access(memory.c_str(), W_OK) == 0;
        std::string name =
            ((usable ? memory : std::filesystem::temp_directory_path()) / "moebius_XXXXXX").string();
        if (::mkdtemp(name.data()) == nullptr) throw Error("mkdtemp");
        path_ = name;
    }
    ~ScratchFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    ScratchFolder(const ScratchFolder&) = delete;
    ScratchFolder& operator=(const ScratchFolder&) = delete;
    const Path& path() const { return path_; }

  private:
    Path path_;
};

inline std::vector<Path> files_under(const Path& folder) {
    std::vector<Path> paths;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
        if (entry.is_regular_file()) paths.push_back(entry.path());
    return paths;
}

struct ToyTensor {
    const char* name;
    Shape shape;
};

inline const std::vector<ToyTensor>& toy_tensors() {
    static const std::vector<ToyTensor> tensors = {{"embed", {10, 4}},
                                                   {"layers.0.attention.qkv", {12, 4}},
                                                   {"layers.0.mlp.gate_up", {3, 6, 4}},
                                                   {"layers.0.mlp.down", {3, 4, 3}},
                                                   {"norm", {4}}};
    return tensors;
}

inline float toy_value(const std::string& name, StateKind kind, int64_t step, int64_t element) {
    uint64_t hash = 1469598103934665603ull ^ static_cast<uint64_t>(kind) * 77777;
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
    hash = (hash ^ static_cast<uint64_t>(step * 1000003 + element)) * 1099511628211ull;
    hash ^= hash >> 29;
    hash *= 0xBF58476D1CE4E5B9ull;
    return static_cast<float>(static_cast<int64_t>(hash >> 40) - (1 << 23)) * 0x1p-20f;
}

struct ToyOptions {
    DType weight_dtype = DType::F32;
    bool masters = false;
    int64_t rank = 0, world = 1;
};

// Entries of one rank: every tensor cut evenly, whatever its shape, so that ranges cross rows and experts.
class ToyState {
  public:
    explicit ToyState(const ToyOptions& options) : options_(options) {
        for (const ToyTensor& tensor : toy_tensors()) {
            add(tensor, StateKind::Weight, options.weight_dtype);
            if (options.masters) add(tensor, StateKind::Master, DType::F32);
            add(tensor, StateKind::Moment1, DType::F32);
            add(tensor, StateKind::Moment2, DType::F32);
        }
        add({"layers.0.router.bias", {3}}, StateKind::Buffer, DType::F32);
        add({"layers.0.router.counts", {3}}, StateKind::Buffer, DType::I64);
    }

    const std::vector<StateEntry>& entries() const { return entries_; }

    void fill(int64_t step) {
        for (const StateEntry& entry : entries_)
            for (int64_t i = 0; i < entry.slice.count; ++i) set(entry, i, expected(entry, step, i));
    }
    // NaN or −1 everywhere.
    void poison() {
        for (const StateEntry& entry : entries_)
            std::memset(entry.view.data, 0xFF, static_cast<size_t>(entry.view.bytes()));
    }
    // Empty, or what the first difference from fill(step) is.
    std::string difference(int64_t step) const {
        for (const StateEntry& entry : entries_)
            for (int64_t i = 0; i < entry.slice.count; ++i)
                if (!(get(entry, i) == expected(entry, step, i)))
                    return entry.slice.name + " kind " + std::to_string(static_cast<int>(entry.kind)) + "[" +
                           std::to_string(entry.slice.begin + i) + "] is " + std::to_string(get(entry, i)) +
                           ", expected " + std::to_string(expected(entry, step, i));
        return "";
    }

  private:
    void add(const ToyTensor& tensor, StateKind kind, DType dtype) {
        const int64_t numel = tensor.shape.numel();
        const int64_t begin = numel * options_.rank / options_.world;
        const int64_t count = numel * (options_.rank + 1) / options_.world - begin;
        memory_.emplace_back(std::make_unique<std::byte[]>(static_cast<size_t>(bytes_of(dtype, count) + 1)));
        entries_.push_back(
            {{tensor.name, tensor.shape, begin, count}, View(memory_.back().get(), dtype, {count}), kind});
    }
    static double expected(const StateEntry& entry, int64_t step, int64_t i) {
        // A bf16 weight is its rounded master, as in training.
        const float value =
            toy_value(entry.slice.name, entry.kind == StateKind::Master ? StateKind::Weight : entry.kind,
                      step, entry.slice.begin + i);
        switch (entry.view.dtype) {
            case DType::BF16:
                return to_float(to_bf16(value));
            case DType::I64:
                return static_cast<double>(static_cast<int64_t>(value * 1000));
            default:
                return value;
        }
    }
    static void set(const StateEntry& entry, int64_t i, double value) {
        switch (entry.view.dtype) {
            case DType::BF16:
                entry.view.as<BF16>()[i] = to_bf16(static_cast<float>(value));
                break;
            case DType::I64:
                entry.view.as<int64_t>()[i] = static_cast<int64_t>(value);
                break;
            default:
                entry.view.as<float>()[i] = static_cast<float>(value);
        }
    }
    static double get(const StateEntry& entry, int64_t i) {
        switch (entry.view.dtype) {
            case DType::BF16:
                return to_float(entry.view.as<BF16>()[i]);
            case DType::I64:
                return static_cast<double>(entry.view.as<int64_t>()[i]);
            default:
                return entry.view.as<float>()[i];
        }
    }

    ToyOptions options_;
    std::vector<std::unique_ptr<std::byte[]>> memory_;
    std::vector<StateEntry> entries_;
};

// The two ways in which experts are named, over the same internal tensors.
inline NameLayout toy_layout(bool fused) {
    NameLayout layout{
        .name = fused ? "fused experts" : "an expert a tensor", .pieces = {}, .ignored = {"*.inv_freq"}};
    auto& p = layout.pieces;
    p.push_back({"model.embed_tokens.weight", {10, 4}, "embed", 0, 40});
    p.push_back({"model.layers.0.self_attn.q_proj.weight", {8, 4}, "layers.0.attention.qkv", 0, 32});
    p.push_back({"model.layers.0.self_attn.k_proj.weight", {2, 4}, "layers.0.attention.qkv", 32, 8});
    p.push_back({"model.layers.0.self_attn.v_proj.weight", {2, 4}, "layers.0.attention.qkv", 40, 8});
    if (fused) {
        p.push_back({"model.layers.0.mlp.experts.gate_up_proj", {3, 6, 4}, "layers.0.mlp.gate_up", 0, 72});
        p.push_back({"model.layers.0.mlp.experts.down_proj", {3, 4, 3}, "layers.0.mlp.down", 0, 36});
    } else {
        for (int64_t e = 0; e < 3; ++e) {
            const std::string prefix = "model.layers.0.block_sparse_moe.experts." + std::to_string(e);
            p.push_back({prefix + ".w1.weight", {3, 4}, "layers.0.mlp.gate_up", e * 24, 12});
            p.push_back({prefix + ".w2.weight", {4, 3}, "layers.0.mlp.down", e * 12, 12});
            p.push_back({prefix + ".w3.weight", {3, 4}, "layers.0.mlp.gate_up", e * 24 + 12, 12});
        }
    }
    p.push_back({"model.norm.weight", {4}, "norm", 0, 4});
    return layout;
}

inline std::vector<NameLayout> toy_layouts() {
    return {toy_layout(true), toy_layout(false)};
}

inline SaveRequest toy_request(const ToyState& state, int64_t step, DType model_dtype = DType::F32) {
    return {.step = step,
            .entries = state.entries(),
            .pieces = toy_layout(true).pieces,
            .model_dtype = model_dtype,
            .model_files = {{"config.json", "{\"model_type\": \"toy\"}\n"}, {"tokenizer.json", "{}\n"}},
            .model_metadata = {{"made.by", "a test"}},
            .trainer = "{\"step\":" + std::to_string(step) + ",\"lr\":0.1,\"seed\":18446744073709551615}",
            .rank_text = ""};
}

// The message of the Error that `body` throws; empty if it throws none.
template <class Body>
std::string error_of(Body&& body) {
    try {
        body();
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

}  // namespace moebius::checkpoint::testing
