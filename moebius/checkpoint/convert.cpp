#include "moebius/checkpoint/convert.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "moebius/base/bf16.h"
#include "moebius/base/check.h"
#include "moebius/base/error.h"

namespace moebius::checkpoint {

namespace {

struct TypeRow {
    FileType type;
    std::string_view name;
    int64_t bytes;
};

constexpr TypeRow kTypes[] = {
    {FileType::F64, "F64", 8},        {FileType::F32, "F32", 4},        {FileType::F16, "F16", 2},
    {FileType::BF16, "BF16", 2},      {FileType::F8E4M3, "F8_E4M3", 1}, {FileType::F8E5M2, "F8_E5M2", 1},
    {FileType::F8E8M0, "F8_E8M0", 1}, {FileType::I64, "I64", 8},        {FileType::I32, "I32", 4},
    {FileType::I16, "I16", 2},        {FileType::I8, "I8", 1},          {FileType::U64, "U64", 8},
    {FileType::U32, "U32", 4},        {FileType::U16, "U16", 2},        {FileType::U8, "U8", 1},
    {FileType::Bool, "BOOL", 1},
};

const TypeRow& row(FileType type) {
    const TypeRow& found = kTypes[static_cast<size_t>(type)];
    MOEBIUS_CHECK(found.type == type);
    return found;
}

bool is_float(FileType type) {
    return type <= FileType::BF16;
}
bool is_integer(FileType type) {
    return type >= FileType::I64;
}

struct Half {
    uint16_t bits;
};

// IEEE binary16; every value is a binary32.
float to_float(Half half) {
    const uint32_t sign = static_cast<uint32_t>(half.bits & 0x8000u) << 16;
    const uint32_t exponent = (half.bits >> 10) & 31u, mantissa = half.bits & 1023u;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | mantissa << 13);
    if (exponent == 0) {
        const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
        return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
    }
    return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

template <class T>
T load(const char* source, int64_t i) {
    T value;
    std::memcpy(&value, source + i * static_cast<int64_t>(sizeof(T)), sizeof value);
    return value;
}

template <class From, class To>
To to(From value) {
    if constexpr (std::is_same_v<From, To>) {
        return value;
    } else if constexpr (std::is_same_v<To, BF16>) {
        return to_bf16(to<From, float>(value));
    } else if constexpr (std::is_same_v<From, BF16>) {
        return static_cast<To>(moebius::to_float(value));
    } else if constexpr (std::is_same_v<From, Half>) {
        return static_cast<To>(to_float(value));
    } else {
        return static_cast<To>(value);
    }
}

template <class From, class To>
void convert_floats(const char* source, To* destination, int64_t count) {
    for (int64_t i = 0; i < count; ++i) destination[i] = to<From, To>(load<From>(source, i));
}

template <class From, class To>
void convert_integers(const char* source, To* destination, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        const From value = load<From>(source, i);
        if (!std::in_range<To>(value))
            throw Error(fmt::format("element {} is {}, outside [{}, {}]", i, value,
                                    std::numeric_limits<To>::min(), std::numeric_limits<To>::max()));
        destination[i] = static_cast<To>(value);
    }
}

template <class To>
void floats_from(FileType type, const char* source, To* destination, int64_t count) {
    switch (type) {
        case FileType::F64:
            return convert_floats<double>(source, destination, count);
        case FileType::F32:
            return convert_floats<float>(source, destination, count);
        case FileType::F16:
            return convert_floats<Half>(source, destination, count);
        default:
            return convert_floats<BF16>(source, destination, count);
    }
}

template <class To>
void integers_from(FileType type, const char* source, To* destination, int64_t count) {
    switch (type) {
        case FileType::I64:
            return convert_integers<int64_t>(source, destination, count);
        case FileType::I32:
            return convert_integers<int32_t>(source, destination, count);
        case FileType::I16:
            return convert_integers<int16_t>(source, destination, count);
        case FileType::I8:
            return convert_integers<int8_t>(source, destination, count);
        case FileType::U64:
            return convert_integers<uint64_t>(source, destination, count);
        case FileType::U32:
            return convert_integers<uint32_t>(source, destination, count);
        case FileType::U16:
            return convert_integers<uint16_t>(source, destination, count);
        default:
            return convert_integers<uint8_t>(source, destination, count);
    }
}

}  // namespace

std::string_view name(FileType type) {
    return row(type).name;
}

int64_t bytes_per_element(FileType type) {
    return row(type).bytes;
}

std::optional<FileType> file_type(std::string_view name) {
    for (const TypeRow& type : kTypes)
        if (type.name == name) return type.type;
    return std::nullopt;
}

FileType file_type(DType dtype) {
    switch (dtype) {
        case DType::F64:
            return FileType::F64;
        case DType::F32:
            return FileType::F32;
        case DType::BF16:
            return FileType::BF16;
        case DType::F8E4M3:
            return FileType::F8E4M3;
        case DType::F8E5M2:
            return FileType::F8E5M2;
        case DType::F8E8M0:
            return FileType::F8E8M0;
        case DType::I64:
            return FileType::I64;
        case DType::I32:
            return FileType::I32;
        case DType::I16:
            return FileType::I16;
        case DType::U8:
            return FileType::U8;
        case DType::F4E2M1:
            break;
    }
    throw Error(fmt::format("safetensors files have no element type for {}", name(dtype)));
}

bool readable_as(FileType type, DType dtype) {
    if (dtype == DType::F4E2M1) return false;
    const FileType target = file_type(dtype);
    return type == target || (is_float(type) && is_float(target)) || (is_integer(type) && is_integer(target));
}

void convert(FileType type, const void* source, DType dtype, void* destination, int64_t count) {
    MOEBIUS_CHECK(readable_as(type, dtype), name(type), " as ", name(dtype));
    if (count == 0) return;
    const auto* bytes = static_cast<const char*>(source);
    if (type == file_type(dtype)) {
        std::memcpy(destination, source, static_cast<size_t>(count * bytes_per_element(type)));
        return;
    }
    switch (dtype) {
        case DType::F64:
            return floats_from(type, bytes, static_cast<double*>(destination), count);
        case DType::F32:
            return floats_from(type, bytes, static_cast<float*>(destination), count);
        case DType::BF16:
            return floats_from(type, bytes, static_cast<BF16*>(destination), count);
        case DType::I64:
            return integers_from(type, bytes, static_cast<int64_t*>(destination), count);
        case DType::I32:
            return integers_from(type, bytes, static_cast<int32_t*>(destination), count);
        case DType::I16:
            return integers_from(type, bytes, static_cast<int16_t*>(destination), count);
        default:
            return integers_from(type, bytes, static_cast<uint8_t*>(destination), count);
    }
}

}  // namespace moebius::checkpoint
