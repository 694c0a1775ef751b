#include "moebius/runtime/dynamic_library.h"

#include <dlfcn.h>

#include <cstdlib>

namespace moebius {
namespace {

std::vector<std::string> toolkit_folders() {
    std::vector<std::string> folders;
    for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
        const char* root = std::getenv(variable);
        if (root == nullptr || *root == '\0') continue;
        folders.push_back(std::string(root) + "/lib64/");
        folders.push_back(std::string(root) + "/lib/");
    }
    folders.push_back("/usr/local/cuda/lib64/");
    return folders;
}

}  // namespace

DynamicLibrary::DynamicLibrary(const std::vector<std::string>& names) {
    std::vector<std::string> paths = names;
    for (const std::string& folder : toolkit_folders()) {
        for (const std::string& name : names) paths.push_back(folder + name);
    }
    for (const std::string& path : paths) {
        handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (handle_ != nullptr) {
            error_.clear();
            return;
        }
        // The loader's own words on the first name: later ones only say that a guessed path is not there.
        if (error_.empty()) {
            const char* text = dlerror();
            error_ = text == nullptr ? path + " could not be opened" : text;
        }
    }
}

// The library stays open: those meant here leave threads and device state behind that outlive a handle.
DynamicLibrary::~DynamicLibrary() = default;

void* DynamicLibrary::find(const char* name) const {
    return handle_ == nullptr ? nullptr : dlsym(handle_, name);
}

}  // namespace moebius
