#include "moebius/checkpoint/json_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "moebius/base/error.h"

namespace moebius::checkpoint {

namespace {

using Json = nlohmann::json;

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
    bool start_array(std::size_t) override { return value(); }
    bool end_array() override { return true; }
    bool start_object(std::size_t) override {
        keys_.emplace_back();
        return true;
    }
    bool end_object() override {
        keys_.pop_back();
        return true;
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

    const std::string& where_;
    std::vector<std::set<std::string>> keys_;
};

}  // namespace

void check_json_object(const std::string& text, const std::string& where) {
    KeyChecker checker(where);
    Json::sax_parse(text, &checker);
}

}  // namespace moebius::checkpoint
