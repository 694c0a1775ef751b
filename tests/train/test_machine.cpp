// Which device a run takes, by what a driver may show: cards that are not here.
#include "moebius/train/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moebius/base/error.h"

namespace moebius::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kGiB = int64_t{1} << 30;

CudaDevice card(int index, const std::string& name, int cc, const std::string& why_not = "") {
    return {.index = index, .name = name, .cc = cc, .memory_bytes = 141 * kGiB, .why_not = why_not};
}

CudaDevice too_old(int index) {
    return card(index, "Tesla V100", 70, "Tesla V100 has compute capability 7.0, kernels need 8.0 or later");
}

int64_t all_free(int) {
    return 140 * kGiB;
}

int64_t asked_in_vain(int gpu) {
    ADD_FAILURE() << "GPU " << gpu << " is asked, but cannot be taken";
    return 0;
}

// One line that names the option and the way out.
std::string refusal(const std::string& wanted, const CudaDevices& found, int64_t (*free_bytes)(int)) {
    try {
        const DeviceChoice choice = choose_device(wanted, found, free_bytes);
        ADD_FAILURE() << "took " << (choice.gpu >= 0 ? "a GPU" : "the CPU");
    } catch (const DeviceError& error) {
        EXPECT_THAT(error.what(),
                    AllOf(HasSubstr("device = " + wanted), HasSubstr("device=cpu"), Not(HasSubstr("\n"))));
        return error.what();
    }
    return "";
}

TEST(ChooseDevice, NoneIsVisible) {
    const CudaDevices none{.why_none = "no GPU is visible (cudaErrorNoDevice)"};
    const DeviceChoice choice = choose_device("auto", none, asked_in_vain);
    EXPECT_EQ(choice.gpu, -1);
    EXPECT_EQ(choice.why_cpu, none.why_none);
    EXPECT_EQ(refusal("cuda", none, asked_in_vain),
              "device = cuda needs a GPU: no GPU is visible (cudaErrorNoDevice); device=cpu uses the CPU");
}

TEST(ChooseDevice, TheCpuIsTakenWhateverThereIs) {
    for (const CudaDevices& found :
         {CudaDevices{.all = {card(0, "H200", 90)}}, CudaDevices{.all = {too_old(0)}},
          CudaDevices{.why_none = "a driver too old", .unusable = true}}) {
        const DeviceChoice choice = choose_device("cpu", found, asked_in_vain);
        EXPECT_EQ(choice.gpu, -1);
        EXPECT_EQ(choice.why_cpu, "") << "nothing to excuse";
    }
}

TEST(ChooseDevice, AGpuThatIsTooOldIsAnError) {
    for (const char* wanted : {"auto", "cuda"}) {
        EXPECT_THAT(refusal(wanted, {.all = {too_old(0)}}, asked_in_vain),
                    HasSubstr("GPU 0: Tesla V100 has compute capability 7.0, kernels need 8.0 or later"));
        EXPECT_THAT(refusal(wanted, {.all = {too_old(0), too_old(1)}}, asked_in_vain),
                    AllOf(HasSubstr("GPU 0: "), HasSubstr("; GPU 1: ")));
    }
}

TEST(ChooseDevice, ADriverOlderThanTheToolkitIsAnError) {
    const CudaDevices found{.why_none =
                                "the NVIDIA driver here supports CUDA 12.2, this program needs a driver "
                                "for CUDA 13.0 or later",
                            .unusable = true,
                            .driver_version = 12020,
                            .runtime_version = 13000};
    for (const char* wanted : {"auto", "cuda"}) {
        EXPECT_EQ(refusal(wanted, found, asked_in_vain),
                  "device = " + std::string(wanted) + ": " + found.why_none + "; device=cpu uses the CPU");
    }
}

// Another card that is free does not make up for it: which one runs is then the user's to say.
TEST(ChooseDevice, AFullGpuIsAnErrorNeverTheCpu) {
    const auto full = [](int gpu) { return gpu == 0 ? kGiB / 10 : 140 * kGiB; };
    for (const char* wanted : {"auto", "cuda"}) {
        for (const CudaDevices& found : {CudaDevices{.all = {card(0, "H200", 90)}},
                                         CudaDevices{.all = {card(0, "H200", 90), card(1, "H200", 90)}}}) {
            EXPECT_THAT(refusal(wanted, found, full),
                        AllOf(HasSubstr("GPU 0 (H200) is full"), HasSubstr("0.10 of its 141.0 GiB"),
                              HasSubstr("CUDA_VISIBLE_DEVICES")));
        }
    }
    // A card too full for a context has nothing free.
    EXPECT_THAT(refusal("auto", {.all = {card(0, "H200", 90)}}, [](int) { return int64_t{0}; }),
                HasSubstr("is full"));
}

TEST(ChooseDevice, TheFirstThatCanBeUsed) {
    for (const char* wanted : {"auto", "cuda"}) {
        EXPECT_EQ(choose_device(wanted, {.all = {card(0, "H200", 90)}}, all_free).gpu, 0);
        EXPECT_EQ(choose_device(wanted, {.all = {card(0, "H200", 90), card(1, "H200", 90)}}, all_free).gpu,
                  0);
        EXPECT_EQ(choose_device(wanted, {.all = {too_old(0), card(1, "H200", 90), card(2, "H200", 90)}},
                                [](int gpu) { return gpu == 1 ? 140 * kGiB : 0; })
                      .gpu,
                  1);
    }
}

}  // namespace
}  // namespace moebius::train
