// The window that survives a resume, and the file of metrics.
#include "moebius/train/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "moebius/base/error.h"

namespace moebius::train {
namespace {

using testing::HasSubstr;

template <class F>
std::string error_of(F&& f) {
    try {
        f();
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

TEST(MetricWindow, SurvivesAsText) {
    MetricWindow window;
    StepResult result;
    result.loss = 1.25;
    result.expert_counts = {3, 5, 8, 0};
    window.add(result, 10, 9, 0.5);
    result.loss = 1.75;
    window.add(result, 10, 8, 0.25);
    const MetricWindow again = MetricWindow::parse(window.to_json());
    EXPECT_EQ(again.steps(), 2);
    EXPECT_EQ(again.loss(), 1.5);
    EXPECT_EQ(again.seconds(), 0.75);
    EXPECT_EQ(again.tokens(), 20);
    EXPECT_EQ(again.real_tokens(), 17);
    EXPECT_THAT(again.expert_counts(), testing::ElementsAre(6, 10, 16, 0));
}

// Of another version of the program: an error of the user's run, not of the program.
TEST(MetricWindow, OtherTextIsAnError) {
    for (const char* text : {"", "3", "{}", "{\"steps\": \"two\"}"})
        EXPECT_THAT(error_of([&] { MetricWindow::parse(text); }), HasSubstr("metrics cannot be read"))
            << text;
}

TEST(MetricsFile, DropsLinesBehindTheStepAndCutOnes) {
    const auto path =
        std::filesystem::temp_directory_path() / ("moebius_metrics_" + std::to_string(getpid()));
    std::ofstream(path) << "{\"step\": 1}\n{\"step\": 2}\n{\"step\": 3}\n{\"st";
    MetricsFile(path, 2).append("{\"step\": 3, \"again\": true}");
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    EXPECT_EQ(text.str(), "{\"step\": 1}\n{\"step\": 2}\n{\"step\": 3, \"again\": true}\n");
    std::filesystem::remove(path);
}

// A read that fails in the middle must not pass for the end of the file: what follows would be lost.
TEST(MetricsFile, AReadErrorIsNotTheEnd) {
    // A regular file whose first byte cannot be read.
    const std::filesystem::path path = "/proc/self/mem";
    ASSERT_TRUE(std::filesystem::is_regular_file(path));
    EXPECT_THAT(error_of([&] { MetricsFile(path, 1); }),
                testing::AllOf(HasSubstr("cannot read /proc/self/mem"), HasSubstr("Input/output error")));
}

}  // namespace
}  // namespace moebius::train
