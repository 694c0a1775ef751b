#include "moebius/ops/grouped_gemm/sm90.h"

#include "moebius/ops/grouped_gemm/sm90_kinds.h"

namespace moebius::ops::sm90 {
namespace {

void run(const GroupedGemmArgs& args, const Cluster& cluster, const Exec& exec) {
    switch (args.kind) {
        case GemmKind::Forward:
            return grouped_forward(args, cluster, exec);
        case GemmKind::Dgrad:
            return grouped_dgrad(args, cluster, exec);
        case GemmKind::Wgrad:
            return grouped_wgrad(args, cluster, exec);
    }
}

}  // namespace

void grouped_gemm(const GroupedGemmArgs& args, const Exec& exec) {
    run(args, choose_cluster(args), exec);
}
void grouped_gemm_single(const GroupedGemmArgs& args, const Exec& exec) {
    run(args, {}, exec);
}
void grouped_gemm_row_pairs(const GroupedGemmArgs& args, const Exec& exec) {
    run(args, {.rows = 2, .columns = 1}, exec);
}
void grouped_gemm_column_pairs(const GroupedGemmArgs& args, const Exec& exec) {
    run(args, {.rows = 1, .columns = 2}, exec);
}

}  // namespace moebius::ops::sm90
