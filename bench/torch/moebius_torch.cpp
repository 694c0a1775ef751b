// Our operations on torch's tensors, in torch's process and on its stream: what bench/torch/moebius_torch.py
// loads, so that both sides are timed and compared in one place. A C interface, so that it is bound to no
// version of torch.
#include <cstdio>

#include "moebius/base/error.h"
#include "moebius/ops/grouped_gemm/grouped_gemm.h"
#include "moebius/runtime/pool.h"

using namespace moebius;

namespace {

struct Context {
    Device device;
    std::unique_ptr<Arena> pool;
    ThreadPool threads{1};
    explicit Context(int index) : device(Device::cuda(index)), pool(make_arena(device)) {}
};

template <class F>
int guarded(char* error, int capacity, F&& function) {
    try {
        function();
        return 0;
    } catch (const std::exception& e) {
        std::snprintf(error, static_cast<size_t>(capacity), "%s", e.what());
        return 1;
    }
}

}  // namespace

extern "C" {

// 0, or 1 with a message in `error`, which has room for `capacity` bytes; so do the others.
int moebius_torch_open(int device, void** context, char* error, int capacity) {
    return guarded(error, capacity, [&] { *context = new Context(device); });
}

void moebius_torch_close(void* context) {
    delete static_cast<Context*>(context);
}

// bf16 a, b, out and i64 split_sizes, all dense, as GroupedGemmArgs says. kind: 0 forward, 1 dgrad, 2 wgrad.
int moebius_torch_grouped_gemm(void* context, void* stream, int kind, void* a, void* b, void* out,
                               void* split_sizes, int64_t experts, int64_t rows, int64_t out_features,
                               int64_t in_features, char* error, int capacity) {
    return guarded(error, capacity, [&] {
        Context& c = *static_cast<Context*>(context);
        const Exec exec{.device = &c.device, .stream = {stream}, .pool = c.pool.get(), .threads = &c.threads};
        const auto view = [](void* data, Shape shape) { return View(data, DType::BF16, shape); };
        const Shape x{rows, in_features}, y{rows, out_features}, w{experts, out_features, in_features};
        const auto which = static_cast<ops::GemmKind>(kind);
        const bool forward = which == ops::GemmKind::Forward, wgrad = which == ops::GemmKind::Wgrad;
        ops::grouped_gemm({.kind = which,
                           .a = view(a, forward ? x : y),
                           .b = view(b, wgrad ? x : w),
                           .out = view(out, forward ? y
                                            : wgrad ? w
                                                    : x),
                           .split_sizes = View(split_sizes, DType::I64, {experts}),
                           .bias = {},
                           .bias_scale = {}},
                          exec);
    });
}

}  // extern "C"
