#include "moebius/ops/attention/cudnn.h"

namespace moebius::ops::cudnn {

std::string unavailable(const AttentionArgs&, const Exec&) {
    return "is not in this build";
}

std::string unavailable(const AttentionBackwardArgs&, bool, const Exec&) {
    return "is not in this build";
}

}  // namespace moebius::ops::cudnn
