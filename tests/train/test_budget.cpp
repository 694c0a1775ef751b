// What is refused before a run begins because memory would not do.
#include "moebius/train/budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <climits>

#include "moebius/base/error.h"
#include "moebius/train/control_group.h"
#include "tests/test_machine.h"

namespace moebius::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string refusal(int64_t numel, const PlaceOptions& options, bool async_save,
                    const KeptByRecipe& recipe = {}) {
    try {
        check_memory_for_parameters(numel, recipe, options, async_save, Device::cpu());
    } catch (const DeviceError& error) {
        return error.what();
    }
    return "";
}

TEST(Budget, TheCopyOfAsyncSaveCounts) {
    const PlaceOptions fp32{.train = true};
    // Parameters and state take three quarters of what is free, the copy 12 bytes of each 16 more.
    const int64_t numel = available_memory() / 4 * 3 / 16;
    EXPECT_EQ(refusal(numel, fp32, false), "");
    EXPECT_THAT(refusal(numel, fp32, true), AllOf(HasSubstr("checkpoint.async_save=false"),
                                                  HasSubstr("GiB are free, of which the run itself takes")));
    EXPECT_EQ(refusal(numel / 4, fp32, true), "");
    // Masters held as remainders are written as they are, in fp32: 14 bytes of a parameter's 16.
    const PlaceOptions split{.dtype = DType::BF16, .masters = Masters::Remainders, .train = true};
    EXPECT_THAT(refusal(numel, split, true), HasSubstr("checkpoint.async_save=false"));
    // What does not fit by itself is not blamed on the copy.
    EXPECT_THAT(refusal(numel * 4, fp32, true),
                AllOf(HasSubstr("parameters need"), Not(HasSubstr("async_save"))));
}

TEST(Budget, HistoriesOfAmaxesCount) {
    const PlaceOptions fp32{.train = true};
    const int64_t histories = available_memory() / 4;  // numbers of 4 bytes
    EXPECT_EQ(refusal(1000, fp32, false, {.histories = histories / 2}), "");
    EXPECT_THAT(refusal(1000, fp32, false, {.histories = histories * 2}),
                AllOf(HasSubstr("DelayedScaling's histories"), HasSubstr("amax_history_len")));
}

TEST(Budget, AStepThatDoesNotFitIsAdvisedWhatIsNotSetYet) {
    StepPlan plan;
    plan.memory.system_bytes = int64_t{1} << 60;
    const auto message = [&](const std::string& checkpointing) {
        config::TrainConfig c;
        c.activation_checkpointing = checkpointing;
        try {
            check_memory_for_step(plan, {}, c, Device::cpu());
        } catch (const DeviceError& error) {
            return std::string(error.what());
        }
        return std::string("no error");
    };
    for (const char* less : {"none", "moe", "attention"}) {
        EXPECT_THAT(message(less),
                    AllOf(HasSubstr("a step needs up to"), HasSubstr("dataset.micro_batch_size"),
                          HasSubstr("activation_checkpointing=full")));
    }
    EXPECT_THAT(message("full"), AllOf(HasSubstr("a step needs up to"), HasSubstr("dataset.micro_batch_size"),
                                       Not(HasSubstr("activation_checkpointing"))));
    plan.memory.system_bytes = 0;
    EXPECT_EQ(message("full"), "no error");
}

// Codes are made and read in software on a CPU: fewer steps fit. Of a speed that is given, not timed beside
// whatever else the machine does.
TEST(Budget, ARecipeOnTheCpuTakesFewerSteps) {
    TestMachine machine;
    if (machine.on_gpu()) GTEST_SKIP() << "about the CPU";
    BudgetInput input{.training_tokens = int64_t{1} << 50, .flops_per_step = 1e9, .gemm_flops = 1e11};
    const int64_t plain = choose_num_steps(input, machine.exec).steps;
    input.codes = true;
    const int64_t codes = choose_num_steps(input, machine.exec).steps;
    EXPECT_LT(codes, plain / 2);
    EXPECT_GT(codes, plain / 20);
    input.gemm_flops = 0;
    EXPECT_GT(choose_num_steps(input, machine.exec).steps, 1);
}

TEST(ControlGroup, ItsOwnAndThoseAroundIt) {
    using testing::ElementsAre;
    EXPECT_THAT(control_group_folders("0::/\n"), ElementsAre("/sys/fs/cgroup"));
    EXPECT_THAT(
        control_group_folders("1:name=x:/old\n0::/user.slice/job-7\n"),
        ElementsAre("/sys/fs/cgroup/user.slice/job-7", "/sys/fs/cgroup/user.slice", "/sys/fs/cgroup"));
    EXPECT_THAT(control_group_folders(""), ElementsAre("/sys/fs/cgroup"));
}

TEST(ControlGroup, CpusOfItsTime) {
    EXPECT_EQ(cpus_allowed("200000 100000\n"), 2);
    EXPECT_EQ(cpus_allowed("150000 100000"), 2);
    EXPECT_EQ(cpus_allowed("50000 100000"), 1);
    EXPECT_EQ(cpus_allowed("9223372036854775807 1"), INT_MAX);
    for (const char* none : {"max 100000", "", "0 0", "-1 100000", "100000"})
        EXPECT_EQ(cpus_allowed(none), 0) << none;
}

}  // namespace
}  // namespace moebius::train
