#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moebius/train/resume.h"

namespace moebius::train {
namespace {

using testing::ElementsAre;

TEST(Resume, SettingsThatChangedAreNamedWithBothValues) {
    const std::string saved =
        "num_train_steps: 10\ngrad_acc_steps: 1\ndataset:\n  micro_batch_size: 8\n  num_workers: 1\n"
        "adamw_kwargs:\n  lr: 0.003\ncheckpoint:\n  save_every_n_steps: 50\n";
    const std::string now =
        "num_train_steps: 20\ngrad_acc_steps: 2\ndataset:\n  micro_batch_size: 4\n  num_workers: 3\n"
        "adamw_kwargs:\n  lr: 0.003\n  eps: 1e-08\ncheckpoint:\n  save_every_n_steps: 5\n";
    EXPECT_THAT(changed_settings(saved, now),
                ElementsAre("adamw_kwargs.eps: (unset) -> 1e-08", "dataset.micro_batch_size: 8 -> 4",
                            "grad_acc_steps: 1 -> 2"));
    EXPECT_THAT(changed_settings(now, now), ElementsAre());
}

}  // namespace
}  // namespace moebius::train
