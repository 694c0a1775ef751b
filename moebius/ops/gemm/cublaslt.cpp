#include "moebius/ops/gemm/cublaslt.h"

#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>

#include "moebius/base/error.h"
#include "moebius/runtime/dynamic_library.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cublaslt {
namespace {

// What the library demands of a workspace's address.
constexpr size_t kWorkspaceAlignment = 256;
// The largest alignment that an algorithm makes use of. Addresses from the pool may be aligned better by
// chance: an algorithm must not follow from that.
constexpr uint32_t kVectorBytes = 16;

struct Functions {
    decltype(&cublasLtCreate) create;
    decltype(&cublasLtDestroy) destroy;
    decltype(&cublasLtGetVersion) version;
    decltype(&cublasLtGetStatusString) status_string;
    decltype(&cublasLtMatmul) matmul;
    decltype(&cublasLtMatmulDescCreate) desc_create;
    decltype(&cublasLtMatmulDescDestroy) desc_destroy;
    decltype(&cublasLtMatmulDescSetAttribute) desc_set;
    decltype(&cublasLtMatrixLayoutCreate) layout_create;
    decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
    decltype(&cublasLtMatmulPreferenceCreate) preference_create;
    decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
    decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
    decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
    decltype(&cublasLtMatmulAlgoConfigGetAttribute) config_get;
};

template <class F>
void find(const DynamicLibrary& library, const char* name, F& function, std::string& missing) {
    function = library.function<F>(name);
    if (function == nullptr && missing.empty()) missing = name;
}

// One product in the library's terms, which are column-major: a row-major (r, c) matrix is a column-major (c,
// r) one with the same leading dimension, so outᵀ (m, n) = left (m, k) · right (k, n), where
//   forward  outᵀ = W xᵀ:    left = b transposed, right = a
//   dgrad    outᵀ = Wᵀ dyᵀ:  left = b,            right = a
//   wgrad    outᵀ = xᵀ dy:   left = b,            right = a transposed
struct Problem {
    cublasOperation_t left, right;
    int64_t m, n, k;
    int64_t left_stride, right_stride, out_stride;
    DType in, out;
    uint32_t alignment;  // bytes, of all three addresses

    auto key() const {
        return std::tuple(static_cast<int>(left), static_cast<int>(right), m, n, k, left_stride, right_stride,
                          out_stride, static_cast<int>(in), static_cast<int>(out), alignment);
    }
};

int64_t row_stride(const View& view) {
    return view.size(0) > 1 ? view.stride[0] : std::max<int64_t>(view.size(1), 1);
}

Problem problem_of(const GemmArgs& args) {
    const bool forward = args.kind == GemmKind::Forward, wgrad = args.kind == GemmKind::Wgrad;
    Problem p{};
    p.left = forward ? CUBLAS_OP_T : CUBLAS_OP_N;
    p.right = wgrad ? CUBLAS_OP_T : CUBLAS_OP_N;
    p.m = args.out.size(1);
    p.n = args.out.size(0);
    p.k = wgrad ? args.a.size(0) : args.a.size(1);
    p.left_stride = row_stride(args.b);
    p.right_stride = row_stride(args.a);
    p.out_stride = row_stride(args.out);
    p.in = args.a.dtype;
    p.out = args.out.dtype;
    const auto addresses = reinterpret_cast<uintptr_t>(args.a.data) |
                           reinterpret_cast<uintptr_t>(args.b.data) |
                           reinterpret_cast<uintptr_t>(args.out.data);
    p.alignment = addresses % kVectorBytes == 0                 ? kVectorBytes
                  : p.in == DType::BF16 || p.out == DType::BF16 ? 2
                                                                : 4;
    return p;
}

cudaDataType_t type_of(DType dtype) {
    return dtype == DType::BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

// Everything about a problem that does not change from call to call.
struct Plan {
    std::string error;  // "" or why there is none
    std::shared_ptr<cublasLtMatmulDescOpaque_t> operation;
    std::shared_ptr<cublasLtMatrixLayoutOpaque_t> left, right, out;
    cublasLtMatmulAlgo_t algorithm{};
    size_t workspace = 0;
};

class Library {
  public:
    Library() : library_({"libcublasLt.so.13"}) {
        if (!library_) {
            error_ = "needs cuBLASLt 13, which cannot be opened: " + library_.error();
            return;
        }
        std::string missing;
        find(library_, "cublasLtCreate", f_.create, missing);
        find(library_, "cublasLtDestroy", f_.destroy, missing);
        find(library_, "cublasLtGetVersion", f_.version, missing);
        find(library_, "cublasLtGetStatusString", f_.status_string, missing);
        find(library_, "cublasLtMatmul", f_.matmul, missing);
        find(library_, "cublasLtMatmulDescCreate", f_.desc_create, missing);
        find(library_, "cublasLtMatmulDescDestroy", f_.desc_destroy, missing);
        find(library_, "cublasLtMatmulDescSetAttribute", f_.desc_set, missing);
        find(library_, "cublasLtMatrixLayoutCreate", f_.layout_create, missing);
        find(library_, "cublasLtMatrixLayoutDestroy", f_.layout_destroy, missing);
        find(library_, "cublasLtMatmulPreferenceCreate", f_.preference_create, missing);
        find(library_, "cublasLtMatmulPreferenceDestroy", f_.preference_destroy, missing);
        find(library_, "cublasLtMatmulPreferenceSetAttribute", f_.preference_set, missing);
        find(library_, "cublasLtMatmulAlgoGetHeuristic", f_.heuristic, missing);
        find(library_, "cublasLtMatmulAlgoConfigGetAttribute", f_.config_get, missing);
        if (!missing.empty()) {
            error_ = "needs cuBLASLt 13: the library that was opened has no " + missing;
            return;
        }
        const cublasStatus_t status = f_.create(&handle_);
        if (status != CUBLAS_STATUS_SUCCESS) error_ = fmt::format("cannot start cuBLASLt: {}", text(status));
    }
    ~Library() {
        plans_.clear();
        if (handle_ != nullptr) f_.destroy(handle_);
    }
    Library(const Library&) = delete;
    Library& operator=(const Library&) = delete;

    const std::string& error() const { return error_; }
    const char* text(cublasStatus_t status) const { return f_.status_string(status); }

    const Plan& plan(const Problem& problem) {
        const auto found = plans_.find(problem.key());
        if (found != plans_.end()) return found->second;
        Plan& plan = plans_[problem.key()];
        if (!error_.empty()) {
            plan.error = error_;
        } else {
            make(problem, plan);
        }
        return plan;
    }

    cublasStatus_t run(const Plan& plan, const GemmArgs& args, void* workspace, cudaStream_t stream) const {
        const float alpha = 1;
        return f_.matmul(handle_, plan.operation.get(), &alpha, args.b.data, plan.left.get(), args.a.data,
                         plan.right.get(), &args.beta, args.out.data, plan.out.get(), args.out.data,
                         plan.out.get(), &plan.algorithm, workspace, plan.workspace, stream);
    }

    std::string describe(const Problem& p, const Plan& plan) const {
        std::string text =
            fmt::format("{}x{}x{} {}{} {}→{}: cuBLASLt {}", p.n, p.m, p.k, p.right == CUBLAS_OP_T ? "T" : "N",
                        p.left == CUBLAS_OP_T ? "T" : "N", name(p.in), name(p.out), version());
        if (!plan.error.empty()) return text + ", " + plan.error;
        constexpr std::pair<cublasLtMatmulAlgoConfigAttributes_t, const char*> kParts[] = {
            {CUBLASLT_ALGO_CONFIG_ID, "algorithm"},
            {CUBLASLT_ALGO_CONFIG_TILE_ID, "tile"},
            {CUBLASLT_ALGO_CONFIG_STAGES_ID, "stages"},
            {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, "split"},
            {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, "reduction"}};
        for (const auto& [attribute, label] : kParts) {
            int32_t value = 0;
            f_.config_get(&plan.algorithm, attribute, &value, sizeof value, nullptr);
            text += fmt::format(", {} {}", label, value);
        }
        return text + fmt::format(", workspace {} bytes", plan.workspace);
    }

  private:
    std::string version() const {
        if (f_.version == nullptr) return "13";
        const size_t v = f_.version();
        return fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
    }

    void make(const Problem& p, Plan& plan) const {
        const auto check = [&](cublasStatus_t status, const char* what) {
            if (status != CUBLAS_STATUS_SUCCESS && plan.error.empty())
                plan.error = fmt::format("{}: {}", what, text(status));
            return status == CUBLAS_STATUS_SUCCESS;
        };
        // fp32 sums of bf16 products; for fp32 operands plain fp32, as TF32 is a compute type of its own.
        cublasLtMatmulDesc_t operation = nullptr;
        if (!check(f_.desc_create(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "operation")) return;
        plan.operation.reset(operation, f_.desc_destroy);
        check(f_.desc_set(operation, CUBLASLT_MATMUL_DESC_TRANSA, &p.left, sizeof p.left), "left operand");
        check(f_.desc_set(operation, CUBLASLT_MATMUL_DESC_TRANSB, &p.right, sizeof p.right), "right operand");

        const auto layout = [&](auto& to, DType dtype, int64_t rows, int64_t columns, int64_t stride) {
            cublasLtMatrixLayout_t made = nullptr;
            if (check(f_.layout_create(&made, type_of(dtype), static_cast<uint64_t>(rows),
                                       static_cast<uint64_t>(columns), stride),
                      "layout"))
                to.reset(made, f_.layout_destroy);
        };
        const bool left_turned = p.left == CUBLAS_OP_T, right_turned = p.right == CUBLAS_OP_T;
        layout(plan.left, p.in, left_turned ? p.k : p.m, left_turned ? p.m : p.k, p.left_stride);
        layout(plan.right, p.in, right_turned ? p.n : p.k, right_turned ? p.k : p.n, p.right_stride);
        layout(plan.out, p.out, p.m, p.n, p.out_stride);
        if (plan.error.empty()) choose(p, plan, check);
    }

    // The library's first proposal: a rule of its version and the shape, never a timing.
    template <class Check>
    void choose(const Problem& p, Plan& plan, const Check& check) const {
        cublasLtMatmulPreference_t made = nullptr;
        if (!check(f_.preference_create(&made), "preference")) return;
        const std::shared_ptr<cublasLtMatmulPreferenceOpaque_t> preference(made, f_.preference_destroy);
        const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
            check(f_.preference_set(made, attribute, &value, sizeof value), "preference");
        };
        prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes});
        // Partial sums kept in fp32 and added up by a step of their own, or none: a fixed order, no atomics.
        prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
        for (const auto operand :
             {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
              CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
            prefer(operand, p.alignment);
        }
        cublasLtMatmulHeuristicResult_t result{};
        int found = 0;
        const cublasStatus_t status =
            f_.heuristic(handle_, plan.operation.get(), plan.left.get(), plan.right.get(), plan.out.get(),
                         plan.out.get(), made, 1, &result, &found);
        if (!plan.error.empty()) return;
        if (status != CUBLAS_STATUS_SUCCESS || found == 0 || result.state != CUBLAS_STATUS_SUCCESS) {
            plan.error = fmt::format("cuBLASLt has no algorithm for it ({})",
                                     text(status != CUBLAS_STATUS_SUCCESS ? status : result.state));
            return;
        }
        plan.algorithm = result.algo;
        plan.workspace = result.workspaceSize;
    }

    DynamicLibrary library_;
    Functions f_{};
    std::string error_;
    cublasLtHandle_t handle_ = nullptr;
    std::map<decltype(Problem{}.key()), Plan> plans_;
};

bool empty(const GemmArgs& args) {
    const Problem p = problem_of(args);
    return p.m == 0 || p.n == 0 || p.k == 0;
}

}  // namespace

std::string unavailable(const GemmArgs& args, const Exec& exec) {
    Library& library = exec.device->slot<Library>();
    if (!library.error().empty()) return library.error();
    return empty(args) ? std::string() : library.plan(problem_of(args)).error;
}

std::string choice(const GemmArgs& args, const Exec& exec) {
    Library& library = exec.device->slot<Library>();
    const Problem problem = problem_of(args);
    return library.describe(problem, library.plan(problem));
}

void gemm(const GemmArgs& args, const Exec& exec) {
    const cudaStream_t stream = cuda_stream(exec);
    if (empty(args)) {
        // A sum of no products. The library takes no empty matrices.
        if (args.out.numel() == 0 || args.beta != 0) return;
        const size_t element = static_cast<size_t>(bytes_of(args.out.dtype, 1));
        cuda_check(cudaMemset2DAsync(args.out.data, static_cast<size_t>(row_stride(args.out)) * element, 0,
                                     static_cast<size_t>(args.out.size(1)) * element,
                                     static_cast<size_t>(args.out.size(0)), stream),
                   "gemm");
        return;
    }
    Library& library = exec.device->slot<Library>();
    const Problem problem = problem_of(args);
    const Plan& plan = library.plan(problem);
    if (!plan.error.empty()) throw DeviceError("gemm: " + library.describe(problem, plan));
    const Scratch scratch("gemm.workspace", plan.workspace + kWorkspaceAlignment, exec);
    const auto address = (reinterpret_cast<uintptr_t>(scratch.as<void>()) + kWorkspaceAlignment - 1) /
                         kWorkspaceAlignment * kWorkspaceAlignment;
    const cublasStatus_t status = library.run(plan, args, reinterpret_cast<void*>(address), stream);
    if (status != CUBLAS_STATUS_SUCCESS)
        throw DeviceError(fmt::format("gemm: {}: {}", library.describe(problem, plan), library.text(status)));
}

}  // namespace moebius::ops::cublaslt
