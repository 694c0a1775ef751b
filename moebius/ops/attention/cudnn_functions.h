// The functions of cuDNN that its frontend calls, each of which opens the library when it is first called:
// the program itself links none of it.
#pragma once

#include <string>

namespace moebius::ops::cudnn {

// Why the library can't be used; "" if it is open.
const std::string& library_error();

}  // namespace moebius::ops::cudnn
