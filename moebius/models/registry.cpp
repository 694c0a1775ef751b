#include <fmt/format.h>
#include <fmt/ranges.h>

#include "moebius/base/error.h"
#include "moebius/models/family.h"

namespace moebius::models {
namespace {

const std::vector<const Family*>& table() {
    static const std::vector<const Family*> families = {&mixtral_family()};
    return families;
}

}  // namespace

std::vector<std::string> family_names() {
    std::vector<std::string> names;
    for (const Family* family : table()) names.emplace_back(family->model_type);
    return names;
}

const Family& family_of(const config::ModelConfig& config) {
    const std::string type = config.get_string("model_type");
    for (const Family* family : table()) {
        if (type == family->model_type) return *family;
    }
    throw Error(fmt::format("{}: model_type = {} is not supported; there is: {}", config.origin(), type,
                            fmt::join(family_names(), ", ")));
}

}  // namespace moebius::models
