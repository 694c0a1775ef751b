#include "moebius/checkpoint/json_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "moebius/base/error.h"
#include "moebius/base/nesting.h"

namespace moebius::checkpoint {

namespace {

using Json = nlohmann::json;

// A config.json as deep as any lies some levels down in trainer.json.
constexpr size_t kDeepest = kDeepestNesting + 8;

class KeyChecker : public nlohmann::json_sax<Json> {
  public:
    explicit KeyChecker(const std::string& where) : where_(where) {}
    bool null() override { return value(); }
    bool boolean(bool) override { return value(); }
    bool number_integer(number_integer_t) override { return value(); }
    bool number_unsigned(number_unsigned_t) override { return value(); }
    bool number_float(number_float_t, const string_t&) override { return value(); }
    bool string(string_t&) override { return value(); }
    bool binary(binary_t&) override { return value(); }
    bool start_array(std::size_t) override { return value() && enter(); }
    bool end_array() override { return leave(); }
    bool start_object(std::size_t) override {
        keys_.emplace_back();
        return enter();
    }
    bool end_object() override {
        keys_.pop_back();
        return leave();
    }
    bool key(string_t& key) override {
        if (!keys_.back().insert(key).second)
            throw Error(fmt::format("{}: the key \"{}\" stands twice", where_, key));
        return true;
    }
    bool parse_error(std::size_t, const std::string&, const Json::exception& error) override {
        throw Error(fmt::format("{}: not valid JSON: {}", where_, error.what()));
    }

  private:
    // Anything but an object at the top.
    bool value() const {
        if (keys_.empty()) throw Error(where_ + ": not a JSON object");
        return true;
    }

    bool enter() {
        if (++depth_ > kDeepest) throw Error(fmt::format("{}: nested more than {} deep", where_, kDeepest));
        return true;
    }
    bool leave() {
        --depth_;
        return true;
    }

    const std::string& where_;
    std::vector<std::set<std::string>> keys_;
    size_t depth_ = 0;
};

}  // namespace

void check_json_object(const std::string& text, const std::string& where) {
    KeyChecker checker(where);
    Json::sax_parse(text, &checker);
}

}  // namespace moebius::checkpoint
