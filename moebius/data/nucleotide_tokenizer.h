// One token a byte: 256 entries, id = byte, except 0 EOS, 1 PAD, 2 BOS, 3 UNK. A text's non-ASCII characters
// are their UTF-8 bytes; bytes 0 to 3 are UNK. Case is kept.
#pragma once

#include <memory>

#include "moebius/data/tokenizer.h"

namespace moebius::data {

std::unique_ptr<Tokenizer> make_nucleotide_tokenizer();

}  // namespace moebius::data
