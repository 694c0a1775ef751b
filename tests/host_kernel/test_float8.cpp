// Scales as kernels compute them in integers, beside the host's, of every number of bf16 that there is.
#include <gtest/gtest.h>

#include <bit>

#include "moebius/base/float8.h"
#include "moebius/ptx/float8.h"

namespace moebius {
namespace {

TEST(Float8OnHost, ScalesOf32WithoutTheProduct) {
    for (const bool e5m2 : {false, true}) {
        const float reciprocal = 1.0f / (e5m2 ? ptx::E5M2::kLargest : ptx::E4M3::kLargest);
        for (uint32_t amax = 0; amax <= 0x7F80; ++amax) {
            const uint32_t code = ptx::e8m0_of_bf16(amax, e5m2);
            ASSERT_EQ(code, e8m0_roundup(std::bit_cast<float>(amax << 16) * reciprocal).bits) << amax;
            const uint32_t scale = ptx::e8m0_reciprocal_bf16(code);
            ASSERT_EQ(std::bit_cast<float>(scale << 16), e8m0_reciprocal({static_cast<uint8_t>(code)}));
        }
    }
}

}  // namespace
}  // namespace moebius
