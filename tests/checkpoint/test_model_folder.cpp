#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/checkpoint/fault_file_system.h"
#include "tests/checkpoint/toy_state.h"

namespace moebius::checkpoint::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

FileSystem& real = real_file_system();

// Weights alone, written under `layout`.
void write_model(const Path& folder, const NameLayout& layout, int64_t step,
                 const ExportOptions& options = {}) {
    make_directories(real, folder);
    ToyState state({});
    state.fill(step);
    export_model(real, folder, layout.pieces, state.entries(), options);
}

std::vector<StateEntry> weights_of(const ToyState& state) {
    std::vector<StateEntry> entries;
    for (const StateEntry& entry : state.entries())
        if (entry.kind == StateKind::Weight) entries.push_back(entry);
    return entries;
}

float weight_at(const ToyState& state, const std::string& name, int64_t i) {
    for (const StateEntry& entry : state.entries())
        if (entry.kind == StateKind::Weight && entry.slice.name == name) return entry.view.as<float>()[i];
    ADD_FAILURE() << name;
    return 0;
}

// Rewrites a folder's one file with some tensors changed by `edit`.
template <class Edit>
void edit_model(const Path& folder, Edit&& edit) {
    const Path path = folder / "model.safetensors";
    const SafetensorsReader reader(real, path);
    std::vector<std::vector<char>> memory;
    std::vector<NamedView> tensors;
    for (const TensorInfo& tensor : reader.tensors()) {
        memory.emplace_back(static_cast<size_t>(tensor.bytes));
        tensors.push_back({tensor.name, View(memory.back().data(), DType::F32, tensor.shape)});
        reader.read(tensor.name, tensors.back().view);
    }
    edit(tensors);
    write_safetensors(real, path, tensors);
}

TEST(ModelFolder, RowsLandWhereTheNamesSay) {
    const ScratchFolder scratch;
    write_model(scratch.path(), toy_layout(false), 3);
    ToyState state({});
    state.fill(3);
    const SafetensorsReader reader(real, scratch.path() / "model.safetensors");
    EXPECT_EQ(reader.metadata().at("format"), "pt");
    std::vector<float> rows(8);
    reader.read("model.layers.0.self_attn.k_proj.weight", View(rows.data(), DType::F32, {2, 4}));
    for (int64_t i = 0; i < 8; ++i)
        EXPECT_EQ(rows[static_cast<size_t>(i)], weight_at(state, "layers.0.attention.qkv", 32 + i));
    std::vector<float> w3(12);
    reader.read("model.layers.0.block_sparse_moe.experts.2.w3.weight", View(w3.data(), DType::F32, {3, 4}));
    for (int64_t i = 0; i < 12; ++i)
        EXPECT_EQ(w3[static_cast<size_t>(i)], weight_at(state, "layers.0.mlp.gate_up", 2 * 24 + 12 + i));
}

TEST(ModelFolder, AnyLayoutWholeOrInShardsIsRead) {
    for (const bool fused : {false, true})
        for (const int64_t max_shard_bytes : {1, 150, 400, 1 << 30})
            for (const int64_t readers : {1, 3}) {
                const ScratchFolder scratch;
                write_model(scratch.path(), toy_layout(fused), 4, {.max_shard_bytes = max_shard_bytes});
                for (int64_t rank = 0; rank < readers; ++rank) {
                    ToyState state({.rank = rank, .world = readers}),
                        expected({.rank = rank, .world = readers});
                    state.poison();
                    expected.fill(4);
                    const auto entries = weights_of(state), right = weights_of(expected);
                    const ImportReport report = import_model(real, scratch.path(), toy_layouts(), entries);
                    EXPECT_EQ(report.layout, toy_layout(fused).name);
                    EXPECT_THAT(report.types, ElementsAre(FileType::F32));
                    for (size_t i = 0; i < entries.size(); ++i)
                        EXPECT_EQ(std::memcmp(entries[i].view.data, right[i].view.data,
                                              static_cast<size_t>(entries[i].view.bytes())),
                                  0);
                }
            }
}

TEST(ModelFolder, ShardsFollowTheLimitAndTheIndexListsThem) {
    const ScratchFolder scratch;
    write_model(scratch.path(), toy_layout(true), 1, {.max_shard_bytes = 300});
    const std::vector<std::string> names = real.list(scratch.path());
    ASSERT_GT(names.size(), 3u);
    int64_t total = 0;
    for (const std::string& name : names) {
        if (!name.ends_with(".safetensors")) continue;
        const SafetensorsReader shard(real, scratch.path() / name);
        int64_t bytes = 0;
        for (const TensorInfo& tensor : shard.tensors()) bytes += tensor.bytes;
        EXPECT_TRUE(bytes <= 300 || shard.tensors().size() == 1) << name;
        total += bytes;
    }
    const std::string index = read_text(real, scratch.path() / "model.safetensors.index.json");
    EXPECT_THAT(index, HasSubstr("\"total_size\": " + std::to_string(total)));
    EXPECT_THAT(index, HasSubstr("\"model.norm.weight\": \"model-0000"));
}

TEST(ModelFolder, WhatIsSaidOfTheModelIsInEveryFileAndComesBack) {
    const ScratchFolder scratch;
    write_model(scratch.path(), toy_layout(true), 1,
                {.max_shard_bytes = 300, .metadata = {{"made.by", "a test"}}});
    const Metadata all = {{"format", "pt"}, {"made.by", "a test"}};
    for (const std::string& name : real.list(scratch.path())) {
        if (!name.ends_with(".safetensors")) continue;
        EXPECT_EQ(SafetensorsReader(real, scratch.path() / name).metadata(), all) << name;
    }
    const ToyState state({});
    EXPECT_EQ(import_model(real, scratch.path(), toy_layouts(), weights_of(state)).metadata, all);
}

TEST(ModelFolder, MastersAndBuffersAreFilledMomentsAreNot) {
    const ScratchFolder scratch;
    write_model(scratch.path(), toy_layout(true), 2);
    ToyState state({.weight_dtype = DType::BF16, .masters = true});
    state.poison();
    import_model(real, scratch.path(), toy_layouts(), state.entries());
    ToyState expected({.weight_dtype = DType::BF16, .masters = true});
    expected.fill(2);
    for (size_t i = 0; i < state.entries().size(); ++i) {
        const StateEntry& entry = state.entries()[i];
        const bool equal = std::memcmp(entry.view.data, expected.entries()[i].view.data,
                                       static_cast<size_t>(entry.view.bytes())) == 0;
        const bool filled = entry.kind == StateKind::Weight || entry.kind == StateKind::Master;
        EXPECT_EQ(equal, filled) << entry.slice.name;
    }
}

TEST(ModelFolder, ExportTakesWeightsBeforeMasters) {
    const ScratchFolder scratch;
    ToyState state({.weight_dtype = DType::BF16, .masters = true});
    state.fill(2);
    export_model(real, scratch.path(), toy_layout(true).pieces, state.entries(), {.dtype = DType::F32});
    std::vector<float> norm(4);
    SafetensorsReader(real, scratch.path() / "model.safetensors")
        .read("model.norm.weight", View(norm.data(), DType::F32, {4}));
    for (int64_t i = 0; i < 4; ++i)
        EXPECT_EQ(norm[static_cast<size_t>(i)],
                  to_float(to_bf16(toy_value("norm", StateKind::Weight, 2, i))));
}

TEST(ModelFolder, WrongTensorsAreNamed) {
    const ScratchFolder scratch;
    ToyState state({});
    state.poison();
    std::vector<float> spare(100);
    using Tensors = std::vector<NamedView>;
    const auto error_after = [&](auto&& edit) {
        const Path folder = scratch.path() / "m";
        std::filesystem::remove_all(folder);
        write_model(folder, toy_layout(false), 1);
        edit_model(folder, edit);
        const std::string error =
            error_of([&] { import_model(real, folder, toy_layouts(), weights_of(state)); });
        EXPECT_THAT(error, HasSubstr(folder.string()));
        // A folder that is refused has changed nothing.
        EXPECT_TRUE(std::isnan(weight_at(state, "embed", 0)));
        return error;
    };
    const std::string expert = "model.layers.0.block_sparse_moe.experts.1.w2.weight";
    EXPECT_THAT(error_after([&](Tensors& t) { std::erase_if(t, [&](auto& x) { return x.name == expert; }); }),
                AllOf(HasSubstr("lacks the tensor " + expert), HasSubstr("an expert a tensor")));
    EXPECT_THAT(
        error_after([&](Tensors& t) {
            t.push_back({"model.layers.7.w", View(spare.data(), DType::F32, {2})});
        }),
        AllOf(HasSubstr("has the tensor model.layers.7.w (in model.safetensors)"), Not(HasSubstr("lacks"))));
    EXPECT_THAT(error_after([&](Tensors& t) {
                    for (auto& x : t)
                        if (x.name == expert) x.view = x.view.reshaped({3, 4});
                }),
                AllOf(HasSubstr("tensor " + expert), HasSubstr("has shape (3, 4), expected (4, 3)")));
    EXPECT_THAT(error_after([&](Tensors& t) { t.clear(); }), HasSubstr(" more"));
    EXPECT_THAT(error_after([&](Tensors& t) {
                    std::memset(spare.data(), 0, 400);
                    for (auto& x : t)
                        if (x.name == expert) x.view = View(spare.data(), DType::I32, {4, 3});
                }),
                AllOf(HasSubstr("tensor " + expert), HasSubstr("has dtype I32")));
}

TEST(ModelFolder, IgnoredAndOptionalTensors) {
    const ScratchFolder scratch;
    write_model(scratch.path(), toy_layout(true), 1);
    std::vector<float> spare(40, 7);
    edit_model(scratch.path(), [&](std::vector<NamedView>& t) {
        t.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", View(spare.data(), DType::F32, {2})});
    });
    ToyState state({});
    EXPECT_EQ(error_of([&] { import_model(real, scratch.path(), toy_layouts(), weights_of(state)); }), "");
    // An optional one that is absent leaves its range as it was, and is reported.
    NameLayout layout = toy_layout(true);
    layout.pieces.push_back({.external_name = "lm_head.weight",
                             .external_shape = {10, 4},
                             .internal_name = "head",
                             .count = 40,
                             .optional = true});
    std::vector<StateEntry> entries = weights_of(state);
    entries.push_back({{"head", {10, 4}, 0, 40}, View(spare.data(), DType::F32, {40}), StateKind::Weight});
    EXPECT_THAT(import_model(real, scratch.path(), {layout}, entries).absent, ElementsAre("lm_head.weight"));
    EXPECT_EQ(spare[39], 7);
    layout.pieces.back().optional = false;
    EXPECT_THAT(error_of([&] { import_model(real, scratch.path(), {layout}, entries); }),
                HasSubstr("lacks the tensor lm_head.weight"));
    // A tied model passes over a head that a file repeats.
    edit_model(scratch.path(), [&](std::vector<NamedView>& t) {
        t.push_back({"lm_head.weight", View(spare.data(), DType::F32, {10, 4})});
    });
    layout = toy_layout(true);
    EXPECT_NE(error_of([&] { import_model(real, scratch.path(), {layout}, weights_of(state)); }), "");
    layout.ignored.push_back("lm_head.weight");
    EXPECT_EQ(error_of([&] { import_model(real, scratch.path(), {layout}, weights_of(state)); }), "");
}

TEST(ModelFolder, SeveralInternalTensorsMakeOneExternal) {
    const ScratchFolder scratch;
    std::vector<float> a = {1, 2, 3, 4}, b = {5, 6};
    const std::vector<StateEntry> entries = {
        {{"a", {2, 2}, 0, 4}, View(a.data(), DType::F32, {4}), StateKind::Weight},
        {{"b", {1, 2}, 0, 2}, View(b.data(), DType::F32, {2}), StateKind::Weight}};
    const NameLayout layout{
        .name = "joined",
        .pieces = {{.external_name = "ab", .external_shape = {3, 2}, .internal_name = "a", .count = 4},
                   {.external_name = "ab",
                    .external_shape = {3, 2},
                    .internal_name = "b",
                    .count = 2,
                    .external_begin = 4}},
        .ignored = {}};
    export_model(real, scratch.path(), layout.pieces, entries, {});
    std::vector<float> all(6);
    SafetensorsReader(real, scratch.path() / "model.safetensors")
        .read("ab", View(all.data(), DType::F32, {3, 2}));
    EXPECT_THAT(all, ElementsAre(1, 2, 3, 4, 5, 6));
    a = {0, 0, 0, 0};
    b = {0, 0};
    import_model(real, scratch.path(), {layout}, entries);
    EXPECT_THAT(a, ElementsAre(1, 2, 3, 4));
    EXPECT_THAT(b, ElementsAre(5, 6));
}

TEST(ModelFolder, FoldersThatAreNone) {
    const ScratchFolder scratch;
    const Path& folder = scratch.path();
    const auto error = [&](const Path& path) { return error_of([&] { WeightFiles(real, path); }); };
    EXPECT_THAT(error(folder / "none"), HasSubstr("does not exist"));
    EXPECT_THAT(error(folder),
                AllOf(HasSubstr(folder.string()), HasSubstr("has neither model.safetensors nor")));
    write_text(real, folder / "pytorch_model.bin", "x");
    EXPECT_THAT(error(folder), HasSubstr("pytorch_model.bin is of a format that is not read"));
    real.make_directory(folder / "step_000005");
    EXPECT_THAT(error(folder), HasSubstr("step_000005/model"));
    write_model(folder / "model", toy_layout(true), 1);
    EXPECT_THAT(error(folder), HasSubstr("did you mean " + (folder / "model").string()));
    EXPECT_EQ(error(folder / "model"), "");
    EXPECT_EQ(error(folder / "model" / "model.safetensors"), "");  // one file will do
}

TEST(ModelFolder, BrokenIndexes) {
    const ScratchFolder scratch;
    write_model(scratch.path(), toy_layout(true), 1, {.max_shard_bytes = 300});
    const Path index = scratch.path() / "model.safetensors.index.json";
    const std::string good = read_text(real, index);
    const auto error_with = [&](const std::string& text) {
        real.remove_file(index);
        write_text(real, index, text);
        return error_of([&] { WeightFiles(real, scratch.path()); });
    };
    const auto replaced = [&](const std::string& from, const std::string& to) {
        std::string text = good;
        text.replace(text.find(from), from.size(), to);
        return text;
    };
    EXPECT_EQ(error_with(good), "");
    EXPECT_THAT(error_with("{"), AllOf(HasSubstr(index.string()), HasSubstr("not valid JSON")));
    EXPECT_THAT(error_with("{}"), HasSubstr("\"weight_map\" is missing"));
    EXPECT_THAT(error_with("{\"weight_map\":{\"a\":3}}"), HasSubstr("tensor a is said to be in 3"));
    EXPECT_THAT(error_with("{\"weight_map\":{\"a\":\"../model.safetensors\"}}"),
                HasSubstr("not a file name"));
    EXPECT_THAT(error_with(replaced("model-00002-of", "model-00009-of")), HasSubstr("which does not exist"));
    EXPECT_THAT(error_with(replaced("\"model.norm.weight\"", "\"model.morn.weight\"")),
                HasSubstr("has no tensor model.morn.weight"));
    EXPECT_EQ(error_with(good), "");
    const Path shard = scratch.path() / real.list(scratch.path())[0];
    std::filesystem::resize_file(shard, std::filesystem::file_size(shard) - 1);
    EXPECT_THAT(error_with(good),
                AllOf(HasSubstr(shard.string()), HasSubstr("tensor model."), HasSubstr("cut short")));
}

TEST(ModelFolder, EveryReadThatFailsIsAnError) {
    const ScratchFolder scratch;
    write_model(scratch.path(), toy_layout(false), 1, {.max_shard_bytes = 200});
    ToyState state({});
    FaultFileSystem counting(Fault::None, 0);
    import_model(counting, scratch.path(), toy_layouts(), weights_of(state));
    ASSERT_GT(counting.operations(), 20);
    for (int64_t n = 1; n <= counting.operations(); ++n) {
        FaultFileSystem failing(Fault::Fail, n), cutting(Fault::Short, n);
        EXPECT_NE(error_of([&] { import_model(failing, scratch.path(), toy_layouts(), weights_of(state)); }),
                  "")
            << n;
        state.poison();
        EXPECT_EQ(error_of([&] { import_model(cutting, scratch.path(), toy_layouts(), weights_of(state)); }),
                  "")
            << n;
        EXPECT_EQ(weight_at(state, "norm", 3), toy_value("norm", StateKind::Weight, 1, 3));
    }
}

TEST(NameRules, Patterns) {
    const NameLayout layout{.name = "", .pieces = {}, .ignored = {"exact", "*.inv_freq", "a*b*c", "tail*"}};
    for (const char* yes : {"exact", "x.inv_freq", ".inv_freq", "abc", "aXbYc", "abbcc", "tail", "tail.1"})
        EXPECT_TRUE(is_ignored(layout, yes)) << yes;
    for (const char* no : {"", "exac", "exactly", "inv_freq", "x.inv_freq.y", "ab", "acb", "atail"})
        EXPECT_FALSE(is_ignored(layout, no)) << no;
}

TEST(NameRulesDeathTest, PiecesMustFillTheirTensors) {
    const auto check = [](std::vector<ExportPiece> pieces) { check_pieces(pieces); };
    check({{"x", {2}, "a", 0, 2}});
    EXPECT_DEATH(check({{"x", {3}, "a", 0, 2}}), "2 elements given");
    EXPECT_DEATH(check({{"x", {2}, "a", 0, 2}, {"y", {1}, "a", 0, 1}, {"x", {2}, "a", 0, 2}}),
                 "x stands in two places");
    EXPECT_DEATH(check({{"x", {2}, "a", 0, 1}, {"x", {2}, "a", 1, 1}}), "x at 1");
}

}  // namespace
}  // namespace moebius::checkpoint::testing
