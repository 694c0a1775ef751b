// moebius info: what this build is, what the machine has, which variants each op can take.
#include <fmt/format.h>

#include <algorithm>

#include "moebius/base/error.h"
#include "moebius/base/version.h"
#include "moebius/cli/command.h"
#include "moebius/cli/licenses.h"
#include "moebius/cli/terminal.h"
#include "moebius/comm/registry.h"
#include "moebius/models/family.h"
#include "moebius/ops/gemm/gemm.h"
#include "moebius/ops/registry.h"
#include "moebius/precision/recipe.h"
#include "moebius/train/machine.h"
#include "moebius/train/resolve.h"
#include "moebius/train/run_folder.h"

namespace moebius::cli {
namespace {

std::string list(const std::vector<std::string>& words) {
    std::string text;
    for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
    return text;
}

class InfoCommand : public Command {
  public:
    std::string name() const override { return "info"; }
    std::string help() const override { return "Print the build, the devices, the variants of every op"; }
    void declare(Arguments& arguments) override {
        arguments.flag("--licenses", licenses_, "Print the licences of what is inside");
    }
    int run(const std::vector<std::string>&) override {
        install_signals();
        if (licenses_) {
            print_raw(std::string(third_party_text()));
            return 0;
        }
        const BuildInfo& build = build_info();
        print(fmt::format("moebius      {}", build.text));
        print(fmt::format("build        {}, {}{}", build.compiler, build.build_type,
                          build.cuda ? ", CUDA" : ", CPU only"));
        const Device device = Device::cpu_from_environment();
        print(fmt::format("cpu          {}, {} CPUs, instructions {} (of {}; MOEBIUS_CPU_ISA forces one)",
                          device.description(), train::available_cpus(), moebius::name(device.isa()),
                          moebius::name(detect_isa())));
        print_gpus();
        print_gemm_choices();
        print("libraries    " + list(train::library_versions()));
        std::vector<std::string> backends;
        for (const CommBackend& backend : comm_backends()) {
            backends.push_back(backend.name + (backend.make ? "" : " (not in this build)"));
        }
        print("collectives  " + list(backends));
        print("families     " + list(models::family_names()));
        print("recipes      " + list(precision::recipe_names()) + " (fp8_config.fp8_recipe)");
        print_variants();
        return 0;
    }

  private:
    static void print_gpus() {
        const CudaDevices devices = visible_cuda_devices();
        if (devices.all.empty()) print("gpu          none: " + devices.why_none);
        constexpr double kGiB = 1 << 30;
        for (const CudaDevice& card : devices.all) {
            print(fmt::format(
                "gpu          {}: {}, compute capability {}.{}, {:.1f} GiB, {} multiprocessors{}", card.index,
                card.name, card.cc / 10, card.cc % 10, static_cast<double>(card.memory_bytes) / kGiB,
                card.sm_count, card.why_not.empty() ? "" : "; cannot be used: " + card.why_not));
        }
        if (devices.runtime_version == 0) return;
        const std::string driver = train::driver_version();
        print(fmt::format("cuda         {} in this build, driver {} for CUDA {}",
                          train::cuda_version_text(devices.runtime_version), driver.empty() ? "none" : driver,
                          train::cuda_version_text(devices.driver_version)));
    }

    // What the library picks for dense products such as a large model's, one line for each direction.
    static void print_gemm_choices() {
        const int gpu = visible_cuda_devices().first_usable();
        if (gpu < 0) return;
        try {
            const Device device = Device::cuda(gpu);
            const Exec exec{.device = &device};
            constexpr int64_t kTokens = 16384, kHidden = 4096;
            // Null addresses count as aligned. A weight's gradient is fp32 unless grad_dtype says otherwise.
            const View x(nullptr, DType::BF16, {kTokens, kHidden});
            const View w(nullptr, DType::BF16, {kHidden, kHidden});
            const View dw(nullptr, DType::F32, {kHidden, kHidden});
            const auto line = [&](const char* direction, const ops::GemmArgs& args) {
                print(fmt::format("gemm         {}: {}", direction, ops::gemm_choice(args, exec)));
            };
            line("forward", {.kind = ops::GemmKind::Forward, .a = x, .b = w, .out = x});
            line("dgrad", {.kind = ops::GemmKind::Dgrad, .a = x, .b = w, .out = x});
            line("wgrad", {.kind = ops::GemmKind::Wgrad, .a = x, .b = x, .out = dw});
        } catch (const DeviceError& error) {
            print(fmt::format("gemm         not asked: {}", error.what()));
        }
    }

    // On what device=auto takes, or on the CPU where a GPU is visible that cannot be used.
    static void print_variants() {
        const CudaDevices devices = visible_cuda_devices();
        const int gpu = devices.first_usable();
        const DeviceKind kind = gpu >= 0 ? DeviceKind::Cuda : DeviceKind::Cpu;
        const int cc = gpu >= 0 ? devices.all[static_cast<size_t>(gpu)].cc : 0;
        print(fmt::format(
            "variants     on {}: * runs unless shapes speak against it; kernels.<op>=<variant> forces one",
            gpu >= 0 ? fmt::format("GPU {}", gpu) : "the CPU"));
        const std::vector<ops::OpInfo> registry = ops::registry();
        size_t width = 0;
        for (const ops::OpInfo& op : registry) width = std::max(width, op.name.size());
        for (const ops::OpInfo& op : registry)
            print(fmt::format("  {:<{}} {}", op.name, width, ops::describe_variants(op, kind, cc)));
    }

    bool licenses_ = false;
};

}  // namespace

std::unique_ptr<Command> info_command() {
    return std::make_unique<InfoCommand>();
}

}  // namespace moebius::cli
