// A check that JSON parsers leave out.
#pragma once

#include <string>

namespace moebius::checkpoint {

// Throws Error, beginning with `where`, unless `text` is one JSON object in which no key of any object stands
// twice (a parser would silently take the last).
void check_json_object(const std::string& text, const std::string& where);

}  // namespace moebius::checkpoint
