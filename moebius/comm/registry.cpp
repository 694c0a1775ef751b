#include "moebius/comm/registry.h"

#include <fmt/format.h>

#include "moebius/base/error.h"
#include "moebius/comm/self.h"

namespace moebius {

std::vector<CommBackend> comm_backends() {
    return {
        {"self", "one process, host memory", make_self_communicator},
    };
}

std::unique_ptr<Communicator> make_communicator(const std::string& name) {
    std::string names;
    for (const CommBackend& backend : comm_backends()) {
        if (backend.name == name) {
            if (!backend.make)
                throw Error(fmt::format("communicator backend '{}' is not in this build", name));
            return backend.make();
        }
        names += (names.empty() ? "" : ", ") + backend.name;
    }
    throw Error(fmt::format("there is no communicator backend '{}'; there are: {}", name, names));
}

}  // namespace moebius
