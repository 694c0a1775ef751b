#include "moebius/precision/recipe.h"

#include <fmt/format.h>

#include "moebius/base/error.h"
#include "moebius/precision/keywords.h"

namespace moebius::precision {
namespace {

struct Row {
    const char* name;
    Recipe (*make)(KeywordReader&);
};
constexpr Row kRecipes[] = {
    {"MXFP8BlockScaling", mxfp8_block_scaling},
    {"Float8CurrentScaling", float8_current_scaling},
    {"DelayedScaling", delayed_scaling},
    {"Float8BlockScaling", float8_block_scaling},
};

}  // namespace

OperandRule Recipe::operand(Role role, Use use) const {
    // The axis that a product sums over is the one that blocks run along: columns of what is read row-wise.
    struct Reads {
        Role role;
        Use use;
        Direction direction;
    };
    constexpr Reads kReads[] = {
        {Role::Input, Use::Forward, Direction::Row},    {Role::Weight, Use::Forward, Direction::Row},
        {Role::GradOutput, Use::Dgrad, Direction::Row}, {Role::Weight, Use::Dgrad, Direction::Column},
        {Role::Input, Use::Wgrad, Direction::Column},   {Role::GradOutput, Use::Wgrad, Direction::Column},
    };
    for (const Reads& reads : kReads) {
        if (reads.role != role || reads.use != use) continue;
        const TensorRule& rule = tensor(role);
        return {true,
                make_format(rule.element, scale, reads.direction, role == Role::Weight, rule.power_of_two),
                reads.direction};
    }
    return {};
}

std::shared_ptr<const Recipe> make_recipe(const std::string& name, const std::string& fp8_format,
                                          const Keywords& keywords,
                                          const std::map<std::string, std::string>& places) {
    std::string names;
    for (const Row& row : kRecipes) {
        names += (names.empty() ? "" : ", ") + std::string(row.name);
        if (row.name != name) continue;
        KeywordReader reader(name, fp8_format, keywords, places);
        Recipe recipe = row.make(reader);
        reader.done();
        recipe.name = name;
        return std::make_shared<const Recipe>(std::move(recipe));
    }
    throw Error(
        fmt::format("fp8_config.fp8_recipe = {}: there is no such recipe; there are {}", name, names));
}

std::vector<std::string> recipe_names() {
    std::vector<std::string> names;
    for (const Row& row : kRecipes) names.emplace_back(row.name);
    return names;
}

}  // namespace moebius::precision
