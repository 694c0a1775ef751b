// A shared library that is opened when it is first needed, so that one program starts where it is absent.
#pragma once

#include <string>
#include <vector>

namespace moebius {

class DynamicLibrary {
  public:
    // Opens the first of `names` that the loader finds, then looks for each in the folders where a CUDA
    // toolkit keeps its libraries: $CUDA_HOME, $CUDA_PATH, /usr/local/cuda. Never throws; error() says what
    // went wrong.
    explicit DynamicLibrary(const std::vector<std::string>& names);
    ~DynamicLibrary();
    DynamicLibrary(const DynamicLibrary&) = delete;
    DynamicLibrary& operator=(const DynamicLibrary&) = delete;

    explicit operator bool() const { return handle_ != nullptr; }
    const std::string& error() const { return error_; }  // "" if it is open

    // Null if the library is not open or has no such function. F: the function's pointer type, of its header.
    template <class F>
    F function(const char* name) const {
        return reinterpret_cast<F>(find(name));
    }

  private:
    void* find(const char* name) const;

    void* handle_ = nullptr;
    std::string error_;
};

}  // namespace moebius
