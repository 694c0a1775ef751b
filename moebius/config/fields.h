// How a schema struct lists its fields, once. Parser, range checks, printer, --help and the docs page are
// visitors. Inside config/ only.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "moebius/config/schema.h"

namespace moebius::config {

using FieldRef =
    std::variant<bool*, int64_t*, double*, std::string*, std::optional<int64_t>*, std::optional<double>*,
                 std::optional<std::string>*, std::array<double, 2>*,
                 std::optional<std::vector<std::string>>*, std::map<std::string, std::string>*, Literals*>;

// Bounds of a number; of each number in a list.
struct Range {
    std::optional<double> at_least{};
    std::optional<double> above{};
    std::optional<double> at_most{};
    std::optional<double> below{};
};

struct Field {
    std::string_view key{};
    FieldRef value{};
    std::string_view help{};
    Range range{};
    std::vector<std::string> choices{};  // allowed names; the caller's list for this key replaces them
    bool required = false;               // the default is ???
    std::string_view null_means{};       // for a plain string: null is allowed, and what load() puts there
    // Why this build does not honour the key; empty: it does. Then only the default and `honoured` values are
    // accepted.
    std::string_view not_yet{};
    std::vector<std::string> honoured{};
};

class Visitor {
  public:
    virtual ~Visitor() = default;
    virtual void field(const Field& field) = 0;
    virtual void enter(std::string_view key, std::string_view help) = 0;  // a nested struct begins
    virtual void leave() = 0;                                             // and ends
};

void fields(Visitor& visitor, Parallelism& s);
void fields(Visitor& visitor, QuantizedModelInit& s);
void fields(Visitor& visitor, Fp8Config& s);
void fields(Visitor& visitor, Fp8Stats& s);
void fields(Visitor& visitor, AuxLoss& s);
void fields(Visitor& visitor, Router& s);
void fields(Visitor& visitor, Dataset& s);
void fields(Visitor& visitor, AdamWKwargs& s);
void fields(Visitor& visitor, LrSchedulerKwargs& s);
void fields(Visitor& visitor, Checkpoint& s);
void fields(Visitor& visitor, Logger& s);
void fields(Visitor& visitor, Validation& s);
void fields(Visitor& visitor, Profiler& s);
void fields(Visitor& visitor, TrainConfig& config);

// A visitor that keeps the dotted name of the struct it is in.
class PathVisitor : public Visitor {
  public:
    void enter(std::string_view key, std::string_view) override { path_.emplace_back(key); }
    void leave() override { path_.pop_back(); }

  protected:
    // The dotted name of `key` in the present struct; of the struct itself if empty.
    std::string full(std::string_view key = {}) const;
    const std::vector<std::string>& path() const { return path_; }

  private:
    std::vector<std::string> path_;
};

// Every dotted key, in order; with `groups` the names of the nested structs as well.
std::vector<std::string> all_keys(bool groups);

// A field's present value as YAML on one line ("null", "[0.9, 0.95]", "fasta"); ??? for a required one not
// given.
std::string value_text(const Field& field);

// "must be at least 1 and below 10", or empty when every number is in the range.
std::string range_violation(const Range& range, double value);
std::string range_text(const Range& range);

}  // namespace moebius::config
