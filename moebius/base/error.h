// Errors that reach a user.
#pragma once

#include <stdexcept>
#include <string>

namespace moebius {

// A mistake in what the user gave us: a value, a file, a key. The text names the value, the place and the key
// to change, in one line or a few, and is shown as it is.
class Error : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// A device that is absent, unusable or out of memory.
class DeviceError : public Error {
  public:
    using Error::Error;
};

// A collective that failed or timed out: names rank, layer and operation.
class CommError : public Error {
  public:
    using Error::Error;
};

}  // namespace moebius
