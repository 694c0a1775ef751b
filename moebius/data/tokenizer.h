// Text to token ids, and the table of tokenizers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moebius::data {

// Immutable, so safe to share among threads.
class Tokenizer {
  public:
    virtual ~Tokenizer() = default;

    virtual std::string_view name() const = 0;
    virtual int32_t vocab_size() const = 0;
    virtual int32_t bos() const = 0;
    virtual int32_t eos() const = 0;
    virtual int32_t pad() const = 0;
    virtual int32_t unk() const = 0;

    // Any text, with BOS and EOS around it: what the Hugging Face tokenizer of hf_json() gives, special
    // tokens written in the text included.
    virtual std::vector<int32_t> encode(std::string_view text) const = 0;

    // Sequence residues (letters, '*', '-', '.'), a token each: appends to `out`, adds no BOS or EOS. A
    // sequence may be handed over in pieces.
    virtual void encode_residues(std::string_view residues, std::vector<int32_t>& out) const = 0;

    // Special tokens are left out.
    virtual std::string decode(std::span<const int32_t> ids) const = 0;

    // Whether the residue is in the alphabet that this tokenizer is for.
    virtual bool is_known(char residue) const = 0;
    virtual std::string_view alphabet() const = 0;  // in words, for messages

    // For labels: the token of the same residue in upper case; whether the residue is certain (one of A C G
    // T).
    virtual int32_t upper(int32_t id) const = 0;
    virtual bool is_certain(int32_t id) const = 0;

    // tokenizer.json, tokenizer_config.json and special_tokens_map.json of a Hugging Face folder.
    virtual std::string hf_json() const = 0;
    virtual std::string hf_config_json(int64_t max_length) const = 0;
    virtual std::string hf_special_tokens_json() const = 0;
};

// The three files above with their names.
std::vector<std::pair<std::string, std::string>> hf_tokenizer_files(const Tokenizer& tokenizer,
                                                                    int64_t max_length);

struct TokenizerRow {
    std::string_view name;  // as in dataset.tokenizer
    std::string_view help;
    std::unique_ptr<Tokenizer> (*make)();
};

// All tokenizers: to add one, a file and a row.
const std::vector<TokenizerRow>& tokenizers();

// Throws Error with the known names.
std::shared_ptr<const Tokenizer> make_tokenizer(std::string_view name);

}  // namespace moebius::data
