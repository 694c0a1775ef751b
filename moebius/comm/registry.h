// The backends of Communicator, listed once: for `info` and for choosing one by name.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "moebius/comm/communicator.h"

namespace moebius {

struct CommBackend {
    std::string name;                         // as users write it
    std::string description;                  // one line
    std::unique_ptr<Communicator> (*make)();  // the world's group; null: not in this build
};

std::vector<CommBackend> comm_backends();

// Throws Error if there is no backend of this name (with the names there are), or it is not in this build.
std::unique_ptr<Communicator> make_communicator(const std::string& name);

}  // namespace moebius
