// The backend of one process: rank 0 of 1, host memory. Every collective is a copy or nothing, so that the
// code of many ranks runs, unchanged, on one.
#pragma once

#include "moebius/comm/communicator.h"

namespace moebius {

std::unique_ptr<Communicator> make_self_communicator();

}  // namespace moebius
