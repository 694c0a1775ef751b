#include "moebius/data/tokenizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "moebius/base/error.h"
#include "moebius/data/nucleotide_tokenizer.h"

namespace moebius::data {

const std::vector<TokenizerRow>& tokenizers() {
    static const std::vector<TokenizerRow> rows = {
        {"nucleotide", "one token a base: 256 entries, id = byte, 0 EOS, 1 PAD, 2 BOS, 3 UNK",
         &make_nucleotide_tokenizer},
    };
    return rows;
}

std::shared_ptr<const Tokenizer> make_tokenizer(std::string_view name) {
    std::vector<std::string_view> names;
    for (const TokenizerRow& row : tokenizers()) {
        if (row.name == name) return row.make();
        names.push_back(row.name);
    }
    throw Error(fmt::format("dataset.tokenizer = {} is not known; known: {}", name, fmt::join(names, ", ")));
}

std::vector<std::pair<std::string, std::string>> hf_tokenizer_files(const Tokenizer& tokenizer,
                                                                    int64_t max_length) {
    return {{"tokenizer.json", tokenizer.hf_json()},
            {"tokenizer_config.json", tokenizer.hf_config_json(max_length)},
            {"special_tokens_map.json", tokenizer.hf_special_tokens_json()}};
}

}  // namespace moebius::data
