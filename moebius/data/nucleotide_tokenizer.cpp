#include "moebius/data/nucleotide_tokenizer.h"

#include <array>
#include <nlohmann/json.hpp>

#include "moebius/base/check.h"

namespace moebius::data {
namespace {

using Json = nlohmann::ordered_json;

constexpr int32_t kEos = 0, kPad = 1, kBos = 2, kUnk = 3;
constexpr std::array<std::string_view, 4> kSpecial = {"<EOS>", "<PAD>", "<BOS>", "<UNK>"};
constexpr std::string_view kIupac = "ACGTUNRYSWKMBDHVacgtunryswkmbdhv-.";

std::string utf8(uint32_t code_point) {
    if (code_point < 0x80) return {static_cast<char>(code_point)};
    return {static_cast<char>(0xC0 | (code_point >> 6)), static_cast<char>(0x80 | (code_point & 0x3F))};
}

// The printable character by which Hugging Face's ByteLevel stands for a byte: itself where it is one, else
// U+0100 and up in the order of the bytes.
std::array<std::string, 256> byte_level_characters() {
    std::array<std::string, 256> characters;
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
        const bool printable =
            (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
        characters[byte] = utf8(printable ? byte : next++);
    }
    return characters;
}

Json special_token(std::string_view content) {
    return {{"content", content},
            {"lstrip", false},
            {"normalized", false},
            {"rstrip", false},
            {"single_word", false}};
}

class NucleotideTokenizer final : public Tokenizer {
  public:
    std::string_view name() const override { return "nucleotide"; }
    int32_t vocab_size() const override { return 256; }
    int32_t bos() const override { return kBos; }
    int32_t eos() const override { return kEos; }
    int32_t pad() const override { return kPad; }
    int32_t unk() const override { return kUnk; }

    std::vector<int32_t> encode(std::string_view text) const override {
        std::vector<int32_t> ids = {kBos};
        while (!text.empty()) {
            const int32_t special = leading_special(text);
            const auto byte = static_cast<unsigned char>(text[0]);
            ids.push_back(special >= 0 ? special : byte <= kUnk ? kUnk : byte);
            text.remove_prefix(special >= 0 ? kSpecial[static_cast<size_t>(special)].size() : 1);
        }
        ids.push_back(kEos);
        return ids;
    }

    void encode_residues(std::string_view residues, std::vector<int32_t>& out) const override {
        const size_t old = out.size();
        out.resize(old + residues.size());
        for (size_t i = 0; i < residues.size(); ++i) out[old + i] = static_cast<unsigned char>(residues[i]);
    }

    std::string decode(std::span<const int32_t> ids) const override {
        std::string text;
        for (const int32_t id : ids) {
            MOEBIUS_CHECK(id >= 0 && id < 256, "token ", id);
            if (id > kUnk) text += static_cast<char>(id);
        }
        return text;
    }

    bool is_known(char residue) const override { return kIupac.find(residue) != std::string_view::npos; }
    std::string_view alphabet() const override { return "nucleotide codes of IUPAC"; }

    int32_t upper(int32_t id) const override { return id >= 'a' && id <= 'z' ? id - 'a' + 'A' : id; }
    bool is_certain(int32_t id) const override {
        const int32_t base = upper(id);
        return base == 'A' || base == 'C' || base == 'G' || base == 'T';
    }

    std::string hf_json() const override;
    std::string hf_config_json(int64_t max_length) const override;
    std::string hf_special_tokens_json() const override {
        return Json{{"bos_token", kSpecial[kBos]},
                    {"eos_token", kSpecial[kEos]},
                    {"pad_token", kSpecial[kPad]},
                    {"unk_token", kSpecial[kUnk]}}
                   .dump(2) +
               "\n";
    }

  private:
    static int32_t leading_special(std::string_view text) {
        if (text[0] != '<') return -1;
        for (size_t id = 0; id < kSpecial.size(); ++id)
            if (text.starts_with(kSpecial[id])) return static_cast<int32_t>(id);
        return -1;
    }
};

// A byte-level BPE without merges: every byte is its own token.
std::string NucleotideTokenizer::hf_json() const {
    const auto characters = byte_level_characters();
    Json vocab = Json::object(), added = Json::array();
    for (size_t id = 0; id < 256; ++id) {
        if (id >= kSpecial.size()) {
            vocab[characters[id]] = id;
            continue;
        }
        vocab[std::string(kSpecial[id])] = id;
        Json token = special_token(kSpecial[id]);
        token["id"] = id;
        token["special"] = true;
        added.push_back(std::move(token));
    }
    const auto special = [](int32_t id) {
        return Json{{"SpecialToken", {{"id", kSpecial[static_cast<size_t>(id)]}, {"type_id", 0}}}};
    };
    const auto sequence = [](const char* which, int type) {
        return Json{{"Sequence", {{"id", which}, {"type_id", type}}}};
    };
    const auto entry = [](int32_t id) {
        const std::string_view text = kSpecial[static_cast<size_t>(id)];
        return Json{{"id", text}, {"ids", {id}}, {"tokens", {text}}};
    };
    Json json;
    json["version"] = "1.0";
    json["truncation"] = nullptr;
    json["padding"] = nullptr;
    json["added_tokens"] = std::move(added);
    json["normalizer"] = nullptr;
    json["pre_tokenizer"] = {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
    json["post_processor"] = {{"type", "TemplateProcessing"},
                              {"single", Json::array({special(kBos), sequence("A", 0), special(kEos)})},
                              {"pair", Json::array({special(kBos), sequence("A", 0), special(kEos),
                                                    special(kBos), sequence("B", 1), special(kEos)})},
                              {"special_tokens", {{"<BOS>", entry(kBos)}, {"<EOS>", entry(kEos)}}}};
    json["decoder"] = {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
    json["model"] = {{"type", "BPE"},
                     {"dropout", nullptr},
                     {"unk_token", kSpecial[kUnk]},
                     {"continuing_subword_prefix", nullptr},
                     {"end_of_word_suffix", nullptr},
                     {"fuse_unk", false},
                     {"byte_fallback", false},
                     {"ignore_merges", false},
                     {"vocab", std::move(vocab)},
                     {"merges", Json::array()}};
    return json.dump(2) + "\n";
}

std::string NucleotideTokenizer::hf_config_json(int64_t max_length) const {
    Json decoder = Json::object();
    for (size_t id = 0; id < kSpecial.size(); ++id) {
        Json token = special_token(kSpecial[id]);
        token["special"] = true;
        decoder[std::to_string(id)] = std::move(token);
    }
    const Json json = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                       {"added_tokens_decoder", std::move(decoder)},
                       {"bos_token", kSpecial[kBos]},
                       {"eos_token", kSpecial[kEos]},
                       {"pad_token", kSpecial[kPad]},
                       {"unk_token", kSpecial[kUnk]},
                       {"padding_side", "right"},
                       {"clean_up_tokenization_spaces", false},
                       {"model_input_names", {"input_ids", "attention_mask"}},
                       {"model_max_length", max_length}};
    return json.dump(2) + "\n";
}

}  // namespace

std::unique_ptr<Tokenizer> make_nucleotide_tokenizer() {
    return std::make_unique<NucleotideTokenizer>();
}

}  // namespace moebius::data
