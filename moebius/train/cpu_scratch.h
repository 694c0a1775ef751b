// Memory that operations take for themselves on the CPU, which a dry run does not see.
#pragma once

#include "moebius/data/batch.h"
#include "moebius/nn/decoder.h"

namespace moebius::train {

// Bytes of scratch that a step's operations hold at one time, at most, whatever the routing (all tokens to
// one expert included) and the lengths of sequences in a batch of that shape: packed operands and partial
// sums up to a fixed size (64 MiB, or one expert's weights and 1,024 of its rows in fp32, if that is more),
// blocks of rows a thread, and for attention's backward pass a sequence's keys a thread and partial gradients
// of its queries. Under a recipe also one expert's operands in fp32 and the gradient of the experts'
// activation. Bounds what the variants in ops/*/cpu*.cpp say of themselves, with their roundings.
int64_t cpu_scratch_bytes(const nn::DecoderOptions& model, const data::BatchShape& shape, int threads);

}  // namespace moebius::train
