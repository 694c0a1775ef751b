#include "moebius/base/dtype.h"

#include "moebius/base/checked.h"

namespace moebius {
namespace {

struct Row {
    DType dtype;
    int64_t bits;
    std::string_view name;
};

constexpr Row kRows[] = {
    {DType::F64, 64, "f64"},      {DType::F32, 32, "f32"},      {DType::BF16, 16, "bf16"},
    {DType::F8E4M3, 8, "f8e4m3"}, {DType::F8E5M2, 8, "f8e5m2"}, {DType::F8E8M0, 8, "f8e8m0"},
    {DType::F4E2M1, 4, "f4e2m1"}, {DType::I64, 64, "i64"},      {DType::I32, 32, "i32"},
    {DType::I16, 16, "i16"},      {DType::U8, 8, "u8"},
};

const Row& row(DType dtype) {
    const Row& found = kRows[static_cast<int>(dtype)];
    MOEBIUS_CHECK(found.dtype == dtype, "dtype ", static_cast<int>(dtype));
    return found;
}

}  // namespace

int64_t bits(DType dtype) {
    return row(dtype).bits;
}

int64_t bytes_of(DType dtype, int64_t count) {
    return ceil_div(checked_mul(bits(dtype), count), 8);
}

std::string_view name(DType dtype) {
    return row(dtype).name;
}

}  // namespace moebius
