#include "moebius/train/budget.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <limits>

#include "moebius/base/error.h"
#include "moebius/ops/gemm/gemm.h"
#include "moebius/runtime/cuda_backend.h"
#include "moebius/runtime/transfer.h"
#include "moebius/train/control_group.h"

namespace moebius::train {
namespace {

// Share of a matrix product's speed that a whole step reaches.
constexpr double kStepShare = 0.6;
// Under a recipe, where operands become codes and numbers again in software: two cores of an EPYC, L0_sanity.
constexpr double kCodesShareCpu = 0.25;
constexpr double kGiB = 1 << 30;

// FLOP/s of a product, best of three: of 1024 × 1024 × 512 in fp32, on a GPU of one that fills it.
double gemm_speed(const Exec& exec, DType run_dtype) {
    const bool gpu = exec.device->kind() == DeviceKind::Cuda;
    const DType dtype = gpu ? run_dtype : DType::F32;
    const int64_t m = gpu ? 4096 : 1024, n = m, k = gpu ? 4096 : 512;
    const Tensor a = Tensor::zeros("budget.a", {m, k}, dtype, exec);
    const Tensor b = Tensor::zeros("budget.b", {n, k}, dtype, exec);
    const Tensor c = Tensor::empty("budget.c", {m, n}, dtype, exec);
    synchronize(exec);
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < 4; ++i) {
        const auto start = std::chrono::steady_clock::now();
        ops::gemm({.a = a, .b = b, .out = c}, exec);
        synchronize(exec);
        const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
        if (i > 0) best = std::min(best, elapsed.count());
    }
    return 2.0 * static_cast<double>(m * n * k) / best;
}

}  // namespace

StepBudget choose_num_steps(const BudgetInput& in, const Exec& exec) {
    const double speed = in.gemm_flops > 0 ? in.gemm_flops : gemm_speed(exec, in.dtype);
    const bool software = in.codes && exec.device->kind() == DeviceKind::Cpu;
    const double step_seconds = in.flops_per_step / ((software ? kCodesShareCpu : kStepShare) * speed);
    const double by_time = std::floor(60.0 * in.minutes / step_seconds);
    const double by_data = std::ceil(kMaxEpochs * static_cast<double>(in.training_tokens) /
                                     static_cast<double>(in.tokens_per_step));
    const double steps = std::clamp(std::min(by_time, by_data), 1.0, 1e12);
    StepBudget budget;
    budget.steps = static_cast<int64_t>(steps);
    budget.reason =
        by_time <= by_data
            ? fmt::format("time_budget_minutes = {} at about {:.2f} s a step", in.minutes, step_seconds)
            : fmt::format("{} passes over {} training tokens (time_budget_minutes = {} would allow {:.0f})",
                          kMaxEpochs, in.training_tokens, in.minutes, by_time);
    return budget;
}

namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
constexpr int64_t kBesideArena = int64_t{256} << 20;

std::string where(const Device& device) {
    return device.kind() == DeviceKind::Cpu
               ? ""
               : fmt::format(" on GPU {} ({})", device.index(), device.description());
}

// The number behind `key` in a file of "key number …" lines; −1 where there is none.
int64_t entry_of(const std::string& path, const std::string& wanted) {
    std::ifstream file(path);
    for (std::string key; file >> key;) {
        int64_t value = 0;
        if (key == wanted && file >> value) return value;
        file.clear();
        file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
    }
    return -1;
}

int64_t number_in(const std::string& path) {
    int64_t value = -1;
    std::ifstream(path) >> value;  // "max" and a file that is not there leave no number
    return value;
}

// What a control group (a container, a batch system) leaves. Pages of files that can go do not count.
int64_t left_in_control_group() {
    int64_t least = kUnlimited;
    for (const std::string& folder : control_group_folders()) {
        const int64_t limit = number_in(folder + "/memory.max"), used = number_in(folder + "/memory.current");
        if (limit <= 0 || used < 0) continue;
        const int64_t pages = std::max<int64_t>(0, entry_of(folder + "/memory.stat", "inactive_file"));
        least = std::min(least, std::max<int64_t>(0, limit - used + pages));
    }
    return least;
}

// Keys that make a parameter's bytes fewer.
std::string smaller_state(const PlaceOptions& o) {
    std::vector<std::string> keys;
    if (o.dtype != DType::F32 && o.masters == Masters::Float32)
        keys.push_back("optimizer_store_param_remainders=true (2 bytes fewer, the same masters)");
    if (o.grad_dtype == DType::F32) keys.push_back("grad_dtype=bf16 (2)");
    if (o.state_dtype == DType::F32) keys.push_back("adamw_kwargs.state_dtype=bf16 (4)");
    return keys.empty() ? "" : fmt::format(", or set {}", fmt::join(keys, ", "));
}

// What a checkpoint has of each parameter: all but its gradient, masters in fp32 however they are held.
void check_memory_for_copy(int64_t numel, const PlaceOptions& o, int64_t beside) {
    const int64_t masters = o.dtype == DType::F32 || o.masters == Masters::None ? 0 : 32;
    const int64_t each = (bits(o.dtype) + masters + 2 * bits(o.state_dtype)) / 8;
    const int64_t copy = checked_mul(numel, each), there = available_memory();
    if (copy <= there - beside) return;
    throw DeviceError(fmt::format(
        "checkpoint.async_save = true writes checkpoints from a copy of weights and optimizer state, {:.2f} "
        "GiB; {:.2f} GiB are free{}: set checkpoint.async_save=false, which waits for each checkpoint "
        "instead",
        static_cast<double>(copy) / kGiB, static_cast<double>(there) / kGiB,
        beside > 0 ? fmt::format(", of which the run itself takes {:.2f}", static_cast<double>(beside) / kGiB)
                   : ""));
}

// What `ulimit -v` leaves.
int64_t left_of_address_space() {
    rlimit limit{};
    const int64_t pages = number_in("/proc/self/statm");
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || pages < 0) return kUnlimited;
    return std::max<int64_t>(0, static_cast<int64_t>(limit.rlim_cur) - pages * sysconf(_SC_PAGESIZE));
}

}  // namespace

int64_t available_memory() {
    const int64_t kib = entry_of("/proc/meminfo", "MemAvailable:");
    const int64_t machine = kib < 0 ? kUnlimited : kib * 1024;
    return std::min({machine, left_in_control_group(), left_of_address_space()});
}

int64_t available_memory(const Device& device) {
    return device.kind() == DeviceKind::Cpu ? available_memory() : cuda_backend::memory().free;
}

void check_memory_for_parameters(int64_t numel, const KeptByRecipe& recipe, const PlaceOptions& options,
                                 bool async_save, const Device& device) {
    const int64_t each = bytes_per_parameter(options);
    // A code for each direction; scales are few beside them.
    const int64_t kept = checked_mul(recipe.quantized, 2), histories = bytes_of(DType::F32, recipe.histories);
    const int64_t needed = checked_add(checked_mul(numel, each), checked_add(kept, histories)),
                  there = available_memory(device);
    if (needed <= there) {
        if (async_save) check_memory_for_copy(numel, options, device.kind() == DeviceKind::Cpu ? needed : 0);
        return;
    }
    throw DeviceError(
        fmt::format("{} parameters need {:.2f} GiB ({} bytes each: weights, gradients, optimizer state), "
                    "{:.2f} GiB are free{}: make the model smaller (config_kwargs.num_hidden_layers, "
                    "num_local_experts, intermediate_size, hidden_size){}{}{}",
                    numel, static_cast<double>(needed) / kGiB, each, static_cast<double>(there) / kGiB,
                    where(device), smaller_state(options),
                    kept > 0 ? fmt::format("; quantized weights take {:.2f} GiB of it (fp8_config.enabled)",
                                           static_cast<double>(kept) / kGiB)
                             : "",
                    histories > 0 ? fmt::format("; DelayedScaling's histories {:.2f} GiB "
                                                "(fp8_config.fp8_recipe_kwargs.amax_history_len)",
                                                static_cast<double>(histories) / kGiB)
                                  : ""));
}

void check_memory_for_batches(const data::BatchShape& shape, const config::TrainConfig& c) {
    // One step's batch on the device and one in the loader's hands; more are made ahead.
    const int64_t origins = shape.max_pieces * static_cast<int64_t>(sizeof(data::SequenceOrigin));
    // Besides its numbers a batch takes this much in the heap: measured, 400 to 460 bytes.
    constexpr int64_t kOfABatch = 512;
    const double each = static_cast<double>(data::BatchBuffer::bytes(shape, 1) + origins + kOfABatch) *
                        static_cast<double>(c.grad_acc_steps);
    const double ahead =
        static_cast<double>(c.dataset.num_workers) * static_cast<double>(c.dataset.prefetch_factor);
    const double needed = each * (2 + ahead), there = static_cast<double>(available_memory());
    if (needed <= there) return;
    throw DeviceError(fmt::format(
        "the batches of {} steps, {} x {} tokens each, need {:.2f} GiB, {:.2f} GiB are free: make "
        "dataset.micro_batch_size = {}, grad_acc_steps = {}, dataset.num_workers = {} or "
        "dataset.prefetch_factor = {} smaller",
        2 + ahead, c.grad_acc_steps, shape.capacity, needed / kGiB, there / kGiB, c.dataset.micro_batch_size,
        c.grad_acc_steps, c.dataset.num_workers, c.dataset.prefetch_factor));
}

void check_memory_for_step(const StepPlan& plan, const PoolReport& held, const config::TrainConfig& c,
                           const Device& device) {
    // What an arena takes for such a step, and what operations, on a GPU libraries and the driver, take
    // beside it.
    const int64_t beside = device.kind() == DeviceKind::Cuda ? kBesideArena : plan.scratch_bytes;
    const int64_t needed = plan.memory.system_bytes + beside, there = available_memory(device);
    if (needed <= there) return;
    std::string largest;
    for (const PoolReport::Row& row : plan.memory.at_peak(5))
        largest += fmt::format("\n  {:<32} {:>14} bytes", row.name, row.at_peak_bytes);
    throw DeviceError(
        fmt::format("a step needs up to {} bytes ({:.2f} GiB), {:.2f} GiB are free{} beside the {:.2f} GiB "
                    "of parameters and state; the largest parts:{}\n"
                    "make dataset.micro_batch_size or dataset.max_seq_length smaller (and grad_acc_steps "
                    "larger){}",
                    needed, static_cast<double>(needed) / kGiB, static_cast<double>(there) / kGiB,
                    where(device), static_cast<double>(held.current_bytes) / kGiB, largest,
                    c.activation_checkpointing == "full" ? "" : ", or set activation_checkpointing=full"));
}

}  // namespace moebius::train
