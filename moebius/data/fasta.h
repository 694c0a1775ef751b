// FASTA: ">name description", then lines of sequence. Read as `samtools faidx` reads it, and where that
// refuses (blank lines, lines of uneven length) read all the same; anything else is an Error with file, line
// and reason.
//
// The name is the header's first word. Lower case is kept. Line ends are LF or CRLF, the last may be missing;
// white space at a line's end is dropped. A sequence has letters, '*', '-' and '.'; anything else is an
// error.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "moebius/data/source.h"

namespace moebius::data {

std::unique_ptr<Source> open_fasta(const std::string& path);

// The first byte that isn't white space is '>'.
bool sniff_fasta(std::string_view start);

// What stands there instead, with a guess at what the file is.
std::string why_not_fasta(std::string_view start);

}  // namespace moebius::data
