// How a family's global tensors are called outside. models/ writes these tables, nobody else knows names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moebius/base/shape.h"

namespace moebius::checkpoint {

// Elements [external_begin, external_begin + count) of an external tensor are elements [internal_begin,
// internal_begin + count) of a global tensor: rows of a fused projection, one expert of many, or all of it.
// Pieces of one external tensor follow each other in the list and fill it from front to back.
struct ExportPiece {
    std::string external_name;
    Shape external_shape;
    std::string internal_name;
    int64_t internal_begin = 0;
    int64_t count = 0;
    int64_t external_begin = 0;
    // Absent from a folder that is read is no error; what it would have filled is left as it was.
    bool optional = false;
};

// One set of external names of a family. Folders are written in one layout and read in any.
struct NameLayout {
    std::string name;  // for messages: "fused experts"
    std::vector<ExportPiece> pieces;
    // Names in a folder that are passed over: exact, or with * for any characters ("*.rotary_emb.inv_freq").
    std::vector<std::string> ignored;
};

bool is_ignored(const NameLayout& layout, const std::string& name);

// Aborts unless the pieces fill every external tensor once, in order.
void check_pieces(const std::vector<ExportPiece>& pieces);

}  // namespace moebius::checkpoint
