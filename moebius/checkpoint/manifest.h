// trainer.json: what a checkpoint is made of. It is written last and carries size and checksum of every other
// file, and a checksum of itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moebius/checkpoint/safetensors.h"

namespace moebius::checkpoint {

inline constexpr const char* kManifestName = "trainer.json";

struct Manifest {
    int64_t step = 0;
    int64_t world_size = 1;
    std::string trainer;            // a JSON object, the trainer's own
    std::vector<FileRecord> files;  // names relative to the checkpoint's folder
};

std::string manifest_text(const Manifest& manifest);

// Throws Error, beginning with `where`, for a text that is not, byte for byte, what manifest_text wrote.
Manifest parse_manifest(const std::string& text, const std::string& where);

}  // namespace moebius::checkpoint
