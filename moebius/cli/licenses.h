// The text of `moebius info --licenses`: NOTICE and THIRD_PARTY.md, built into the program.
#pragma once

#include <string_view>

namespace moebius::cli {

std::string_view third_party_text();

}  // namespace moebius::cli
