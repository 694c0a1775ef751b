#include "moebius/ops/grouped_gemm/sm90.h"

#include "moebius/ops/grouped_gemm/sm90_kinds.h"

namespace moebius::ops::sm90 {

void grouped_gemm(const GroupedGemmArgs& args, const Exec& exec) {
    switch (args.kind) {
        case GemmKind::Forward:
            return grouped_forward(args, exec);
        case GemmKind::Dgrad:
            return grouped_dgrad(args, exec);
        case GemmKind::Wgrad:
            return grouped_wgrad(args, exec);
    }
}

}  // namespace moebius::ops::sm90
