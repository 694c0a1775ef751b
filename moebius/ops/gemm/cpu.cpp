#include "moebius/ops/gemm/cpu.h"

#include "moebius/ops/cpu_math.h"
#include "moebius/ops/gemm/cpu_products.h"

namespace moebius::ops::cpu {

void gemm_packed(const GemmArgs& args, const Exec& exec) {
    const bool accumulate = args.beta != 0;
    if (args.kind == GemmKind::Wgrad) {
        run_products(DepthProducts{.m = args.out.size(0),
                                   .n = args.out.size(1),
                                   .groups = {{.rows = args.a.size(0),
                                               .a = Matrix(args.a),
                                               .b = Matrix(args.b),
                                               .out = Matrix(args.out),
                                               .accumulate = accumulate}}},
                     exec);
        return;
    }
    run_products(RowProducts{.a = Matrix(args.a),
                             .out = Matrix(args.out),
                             .n = args.out.size(1),
                             .k = args.a.size(1),
                             .transposed = args.kind == GemmKind::Forward,
                             .groups = {{0, args.a.size(0), Matrix(args.b)}},
                             .accumulate = accumulate},
                 exec);
}

void gemm_naive(const GemmArgs& args, const Exec& exec) {
    const bool across = args.kind == GemmKind::Wgrad;    // a is transposed
    const bool weight = args.kind == GemmKind::Forward;  // b is transposed
    const int64_t depth = args.a.size(across ? 0 : 1), n = args.out.size(1);
    with_float_type(args.a.dtype, [&](auto a_type) {
        with_float_type(args.b.dtype, [&](auto b_type) {
            with_float_type(args.out.dtype, [&](auto out_type) {
                const auto* a = args.a.as<decltype(a_type)>();
                const auto* b = args.b.as<decltype(b_type)>();
                auto* out = args.out.as<decltype(out_type)>();
                const int64_t a_row = across ? 1 : args.a.stride[0], a_step = across ? args.a.stride[0] : 1;
                const int64_t b_column = weight ? args.b.stride[0] : 1;
                const int64_t b_step = weight ? 1 : args.b.stride[0];
                exec.parallel(args.out.size(0), [&](int64_t i, int) {
                    for (int64_t j = 0; j < n; ++j) {
                        auto* c = out + i * args.out.stride[0] + j;
                        float sum = args.beta != 0 ? to_float(*c) : 0.0f;
                        for (int64_t p = 0; p < depth; ++p) {
                            sum +=
                                to_float(a[i * a_row + p * a_step]) * to_float(b[j * b_column + p * b_step]);
                        }
                        store_as(c, sum);
                    }
                });
            });
        });
    });
}

}  // namespace moebius::ops::cpu
