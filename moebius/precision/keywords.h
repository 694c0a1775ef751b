// Keyword arguments of a recipe as they are read: each key once, what is left over is an error.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "moebius/precision/recipe.h"

namespace moebius::precision {

class KeywordReader {
  public:
    KeywordReader(std::string recipe, std::string fp8_format, const Keywords& keywords,
                  const std::map<std::string, std::string>& places);

    std::optional<bool> flag(const std::string& key);
    std::optional<int64_t> integer(const std::string& key, int64_t least, int64_t most);
    std::optional<double> number(const std::string& key, double least);
    std::optional<std::string> word(const std::string& key, const std::vector<std::string>& allowed);
    // A value that is the only one there is here; `why` says what stands against the others.
    void only(const std::string& key, bool value, const std::string& why);
    void only(const std::string& key, int64_t value, const std::string& why);
    // fp8_format, from its own key or from among the keywords: true for HYBRID.
    bool hybrid(const std::string& standard);

    // "fp8_config.fp8_recipe_kwargs.margin = 3 (Float8BlockScaling): <problem> (train.yaml:6)"
    [[noreturn]] void fail(const std::string& key, const std::string& problem) const;
    // Throws Error if a keyword was not asked for.
    void done() const;

  private:
    const KeywordValue* find(const std::string& key);

    std::string recipe_, fp8_format_;
    const Keywords& keywords_;
    const std::map<std::string, std::string>& places_;
    std::set<std::string> known_;
};

// "fp8_quant_fwd_inp.{power_2_scale,amax_epsilon}", …_fwd_weight and …_bwd_grad into the recipe's tensors.
// `all` is what a recipe's own key says of all three; one that says otherwise contradicts it.
void read_tensor_rules(KeywordReader& reader, const char* key_of_all, std::optional<bool> all, bool standard,
                       Recipe& recipe);
// "fp8_gemm_{fprop,dgrad,wgrad}.use_split_accumulator" into fast_accumulation, given as the standard.
void read_accumulation(KeywordReader& reader, Recipe& recipe);
// Elements of a format: E4M3, with `hybrid` E5M2 for gradients.
void set_elements(Recipe& recipe, bool hybrid);
// fp8_dpa and fp8_mha: attention's own products stay in bf16.
void refuse_attention(KeywordReader& reader);

// One a recipe, listed in recipe.cpp.
Recipe mxfp8_block_scaling(KeywordReader& reader);
Recipe float8_current_scaling(KeywordReader& reader);
Recipe delayed_scaling(KeywordReader& reader);
Recipe float8_block_scaling(KeywordReader& reader);

}  // namespace moebius::precision
