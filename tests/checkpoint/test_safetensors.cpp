#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "moebius/base/bf16.h"
#include "tests/checkpoint/fault_file_system.h"
#include "tests/checkpoint/toy_state.h"

namespace moebius::checkpoint::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

FileSystem& real = real_file_system();

// A file by hand: the header as given, then `data` bytes.
void write_file(const Path& path, const std::string& header, int64_t data_bytes, int64_t claimed = -1) {
    const uint64_t length = claimed >= 0 ? static_cast<uint64_t>(claimed) : header.size();
    std::string text(8, '\0');
    std::memcpy(text.data(), &length, 8);
    text += header;
    for (int64_t i = 0; i < data_bytes; ++i) text.push_back(static_cast<char>(i));
    if (real.kind(path) == FileKind::Regular) real.remove_file(path);
    write_text(real, path, text);
}

TEST(Safetensors, RoundTripOfEveryTypeAtOddAlignment) {
    const ScratchFolder scratch;
    const Path path = scratch.path() / "a.safetensors";
    std::vector<uint8_t> bytes = {1, 2, 255};
    std::vector<double> doubles = {1.5, -0.0, std::numeric_limits<double>::denorm_min()};
    std::vector<float> floats = {1.25f, std::numeric_limits<float>::infinity(), -3e-39f, 0.1f};
    std::vector<BF16> halves = {to_bf16(1.0f), to_bf16(-2.5f)};
    std::vector<int64_t> longs = {INT64_MIN, 7};
    std::vector<int32_t> ints = {INT32_MIN, 3, 4};
    std::vector<int16_t> shorts = {-5};
    // In this order, so that the wide ones begin at odd bytes.
    const std::vector<PlannedTensor> plan = {
        {"bytes", DType::U8, {3}},    {"doubles", DType::F64, {3}},  {"floats", DType::F32, {2, 2}},
        {"halves", DType::BF16, {2}}, {"longs", DType::I64, {2, 1}}, {"ints", DType::I32, {3}},
        {"shorts", DType::I16, {1}},  {"scalar", DType::F32, {}},    {"nothing", DType::F32, {0, 5}}};
    float scalar = 42;
    const std::vector<View> views = {
        View(bytes.data(), DType::U8, {3}),      View(doubles.data(), DType::F64, {3}),
        View(floats.data(), DType::F32, {2, 2}), View(halves.data(), DType::BF16, {2}),
        View(longs.data(), DType::I64, {2, 1}),  View(ints.data(), DType::I32, {3}),
        View(shorts.data(), DType::I16, {1}),    View(&scalar, DType::F32, {}),
        View(floats.data(), DType::F32, {0, 5})};
    SafetensorsWriter writer(real, path, plan, {{"who", "a \"quoted\" name"}});
    for (size_t i = 0; i < plan.size(); ++i) writer.write(i, 0, views[i]);
    const FileRecord record = writer.finish();
    EXPECT_EQ(record.checksum, checksum_of(real, path));
    EXPECT_EQ(record.bytes, static_cast<int64_t>(std::filesystem::file_size(path)));

    const SafetensorsReader reader(real, path);
    EXPECT_EQ(reader.metadata().at("who"), "a \"quoted\" name");
    ASSERT_EQ(reader.tensors().size(), plan.size());
    for (size_t i = 0; i < plan.size(); ++i) {
        const TensorInfo& info = reader.at(plan[i].name);
        EXPECT_EQ(info.type, file_type(plan[i].dtype));
        EXPECT_EQ(info.shape, plan[i].shape);
        std::vector<char> back(static_cast<size_t>(info.bytes) + 1, 'x');
        reader.read(plan[i].name, View(back.data(), plan[i].dtype, plan[i].shape));
        EXPECT_EQ(std::memcmp(back.data(), views[i].data, static_cast<size_t>(info.bytes)), 0)
            << plan[i].name;
        EXPECT_EQ(back.back(), 'x');
    }
    EXPECT_EQ(reader.find("absent"), nullptr);
    EXPECT_THAT(error_of([&] { reader.at("absent"); }),
                AllOf(HasSubstr("has no tensor absent"), HasSubstr(path.string())));
}

TEST(Safetensors, TheFormatByteForByte) {
    const ScratchFolder scratch;
    const Path path = scratch.path() / "a.safetensors";
    std::vector<int16_t> values = {1, 2};
    SafetensorsWriter writer(real, path, {{"x", DType::I16, {2}}}, {});
    writer.write(0, 0, View(values.data(), DType::I16, {2}));
    writer.finish();
    const std::string header = "{\"x\":{\"dtype\":\"I16\",\"shape\":[2],\"data_offsets\":[0,4]}}  ";
    EXPECT_EQ(header.size() % 8, 0u);
    EXPECT_EQ(read_text(real, path),
              std::string("\x38\0\0\0\0\0\0\0", 8) + header + std::string("\1\0\2\0", 4));
}

TEST(Safetensors, PartsInAnyOrderGiveTheSameFile) {
    const ScratchFolder scratch;
    std::vector<float> values(1000);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.37f;
    const auto part = [&](int64_t begin, int64_t count) {
        return View(values.data() + begin, DType::F32, {count});
    };
    const std::vector<PlannedTensor> plan = {{"a", DType::F32, {600}}, {"b", DType::BF16, {20, 20}}};
    SafetensorsWriter in_order(real, scratch.path() / "in_order", plan, {});
    in_order.write(0, 0, part(0, 600));
    in_order.write(1, 0, part(600, 400));
    const FileRecord first = in_order.finish();
    SafetensorsWriter mixed(real, scratch.path() / "mixed", plan, {});
    mixed.write(1, 333, part(933, 67));
    mixed.write(0, 0, part(0, 600));
    mixed.write(1, 0, part(600, 333));
    EXPECT_EQ(mixed.finish().checksum, "");
    EXPECT_EQ(checksum_of(real, scratch.path() / "mixed"), first.checksum);
}

TEST(Safetensors, ConvertsFloats) {
    const ScratchFolder scratch;
    const Path path = scratch.path() / "a";
    // binary16: 1, −2, 65504 (largest), 2^−24 (smallest), −0, inf, NaN, 1/3
    const std::vector<uint16_t> halves = {0x3C00, 0xC000, 0x7BFF, 0x0001, 0x8000, 0x7C00, 0x7E01, 0x3555};
    std::string text(8, '\0');
    const std::string header = "{\"h\":{\"dtype\":\"F16\",\"shape\":[8],\"data_offsets\":[0,16]}}";
    text[0] = static_cast<char>(header.size());
    text += header + std::string(reinterpret_cast<const char*>(halves.data()), 16);
    write_text(real, path, text);
    std::vector<float> f32(8);
    const SafetensorsReader reader(real, path);
    reader.read("h", View(f32.data(), DType::F32, {8}));
    EXPECT_THAT(std::vector<float>(f32.begin(), f32.begin() + 4),
                ElementsAre(1.0f, -2.0f, 65504.0f, 0x1p-24f));
    EXPECT_TRUE(f32[4] == 0 && std::signbit(f32[4]));
    EXPECT_TRUE(std::isinf(f32[5]) && std::isnan(f32[6]));
    EXPECT_EQ(f32[7], 0.333251953125f);
    std::vector<BF16> bf16(3);
    reader.read(reader.at("h"), 5, 3, View(bf16.data(), DType::BF16, {3}));
    EXPECT_EQ(bf16[0].bits, 0x7F80);
    EXPECT_TRUE(std::isnan(to_float(bf16[1])));
    EXPECT_EQ(bf16[2].bits, to_bf16(0.333251953125f).bits);
    EXPECT_THAT(error_of([&] {
                    std::vector<int32_t> ints(8);
                    reader.read("h", View(ints.data(), DType::I32, {8}));
                }),
                AllOf(HasSubstr("tensor h has dtype F16"), HasSubstr("i32"), HasSubstr(path.string())));
}

TEST(Safetensors, ConvertsLongTensorsPieceByPiece) {
    const ScratchFolder scratch;
    const int64_t count = 3'000'017;  // several staging buffers, ragged
    std::vector<float> values(count);
    for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = static_cast<float>(i % 251) - 125;
    SafetensorsWriter writer(real, scratch.path() / "a", {{"x", DType::BF16, {count}}}, {});
    writer.write(0, 0, View(values.data(), DType::F32, {count}));
    EXPECT_EQ(writer.finish().checksum, checksum_of(real, scratch.path() / "a"));
    std::vector<float> back(count);
    SafetensorsReader(real, scratch.path() / "a").read("x", View(back.data(), DType::F32, {count}));
    EXPECT_EQ(back, values);
}

TEST(Safetensors, IntegersThatDoNotFitAreNamed) {
    const ScratchFolder scratch;
    std::vector<int64_t> values = {1, -1, int64_t{1} << 40};
    write_safetensors(real, scratch.path() / "a", {{"ids", View(values.data(), DType::I64, {3})}});
    const SafetensorsReader reader(real, scratch.path() / "a");
    std::vector<int32_t> ints(3);
    reader.read(reader.at("ids"), 0, 2, View(ints.data(), DType::I32, {2}));
    EXPECT_THAT(ints, ElementsAre(1, -1, 0));
    EXPECT_THAT(error_of([&] { reader.read("ids", View(ints.data(), DType::I32, {3})); }),
                AllOf(HasSubstr("tensor ids"), HasSubstr("1099511627776")));
    std::vector<uint8_t> bytes(1);
    EXPECT_THAT(error_of([&] { reader.read(reader.at("ids"), 1, 1, View(bytes.data(), DType::U8, {1})); }),
                HasSubstr("-1, outside [0, 255]"));
    EXPECT_THAT(error_of([&] { reader.read("ids", View(ints.data(), DType::I32, {2})); }),
                HasSubstr("has shape (3), expected (2)"));
}

struct Malformed {
    const char* header;
    int64_t data_bytes;
    const char* complaint;
};

TEST(Safetensors, EveryMalformedHeaderIsAnErrorThatNamesTheFile) {
#define ENTRY(name, dtype, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
    const Malformed rows[] = {
        {"", 0, "does not begin with {"},
        {"[]", 0, "does not begin with {"},
        {"{", 0, "not valid JSON"},
        {"{\"a\"}", 0, "not valid JSON"},
        {"{}{}", 0, "not valid JSON"},
        {"{\"\xff\":1}", 0, "not valid JSON"},
        {"{\"a\":3}", 0, "tensor a: its entry is not an object"},
        {"{" ENTRY("a", "F32", "[1]", "[0,4]") "," ENTRY("a", "F32", "[1]", "[4,8]") "}", 8,
         "\"a\" stands twice"},
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         "\"dtype\" stands twice"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"more\":1}}", 4,
         "tensor a: unknown key \"more\""},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensor a: \"dtype\" is missing"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "tensor a: \"shape\" is missing"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "tensor a: \"data_offsets\" is missing"},
        {"{" ENTRY("a", "F31", "[1]", "[0,4]") "}", 4, "tensor a: unknown dtype \"F31\""},
        {"{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensor a: dtype is not a string"},
        {"{" ENTRY("a", "F32", "1", "[0,4]") "}", 4, "tensor a: shape is not an array"},
        {"{" ENTRY("a", "F32", "[-1]", "[0,4]") "}", 4, "tensor a: shape has -1"},
        {"{" ENTRY("a", "F32", "[1.5]", "[0,4]") "}", 4, "tensor a: shape has 1.5"},
        {"{" ENTRY("a", "F32", "[\"1\"]", "[0,4]") "}", 4, "tensor a: shape has \"1\""},
        {"{" ENTRY("a", "F32", "[1,1,1,1,1,1]", "[0,4]") "}", 4, "tensor a: 6 dimensions"},
        {"{" ENTRY("a", "F32", "[4294967296,4294967296]", "[0,4]") "}", 4, "tensor a: shape"},
        {"{" ENTRY("a", "F32", "[18446744073709551615]", "[0,4]") "}", 4,
         "tensor a: shape has 18446744073709551615"},
        {"{" ENTRY("a", "F32", "[9223372036854775807,3]", "[0,4]") "}", 4, "larger than any file"},
        {"{" ENTRY("a", "F32", "[4611686018427387904,4,0]", "[0,0]") "}", 0, "larger than any file"},
        {"{" ENTRY("a", "F32", "[2]", "[0,4]") "}", 4,
         "tensor a: F32 (2) takes 8 bytes, data_offsets [0, 4] give 4"},
        {"{" ENTRY("a", "F32", "[1]", "[0]") "}", 4, "tensor a: data_offsets is not a pair"},
        {"{" ENTRY("a", "F32", "[1]", "[4,0]") "}", 4, "tensor a: data_offsets [4, 0] run backwards"},
        {"{" ENTRY("a", "F32", "[1]", "[-4,0]") "}", 4, "tensor a: data_offsets has -4"},
        {"{" ENTRY("a", "F32", "[2]", "[0,8]") "}", 7,
         "tensor a: data_offsets [0, 8] reach past the end of the file"},
        {"{" ENTRY("a", "F32", "[1]", "[0,4]") "," ENTRY("b", "F32", "[1]", "[2,6]") "}", 6,
         "tensor b overlaps tensor a"},
        {"{" ENTRY("a", "F32", "[1]", "[0,4]") "," ENTRY("b", "F32", "[1]", "[0,4]") "}", 4,
         "overlaps tensor"},
        {"{" ENTRY("a", "F32", "[1]", "[0,4]") "," ENTRY("b", "F32", "[1]", "[5,9]") "}", 9,
         "1 bytes before tensor b"},
        {"{" ENTRY("a", "F32", "[1]", "[0,4]") "}", 5, "1 bytes after the last tensor"},
        {"{\"__metadata__\":3}", 0, "__metadata__ is not an object"},
        {"{\"__metadata__\":{\"a\":3}}", 0, "__metadata__.a is not a string"},
    };
    const ScratchFolder scratch;
    const Path path = scratch.path() / "bad.safetensors";
    for (const Malformed& row : rows) {
        write_file(path, row.header, row.data_bytes);
        const std::string error = error_of([&] { SafetensorsReader(real, path); });
        EXPECT_THAT(error, AllOf(HasSubstr(row.complaint), HasSubstr(path.string()))) << row.header;
    }
    // A good one passes: the table does not fail for another reason.
    write_file(path, "{" ENTRY("a", "F32", "[1]", "[0,4]") "," ENTRY("b", "I8", "[0,9]", "[4,4]") "}  ", 4);
    EXPECT_EQ(SafetensorsReader(real, path).tensors().size(), 2u);
#undef ENTRY
}

TEST(Safetensors, LengthsThatLie) {
    const ScratchFolder scratch;
    const Path path = scratch.path() / "bad.safetensors";
    const auto error = [&] { return error_of([&] { SafetensorsReader(real, path); }); };
    write_text(real, path, "");
    EXPECT_THAT(error(), HasSubstr("0 bytes are too few"));
    real.remove_file(path);
    write_text(real, path, "1234567");
    EXPECT_THAT(error(), HasSubstr("7 bytes are too few"));
    write_file(path, "{}", 0, 3);
    EXPECT_THAT(error(), HasSubstr("cut short: the header takes 11 bytes, the file has 10"));
    write_file(path, "{}", 0, 100'000'001);
    EXPECT_THAT(error(), HasSubstr("a header of 100000001 bytes"));
    write_file(path, "{}", 0, INT64_MAX);
    EXPECT_THAT(error(), HasSubstr("a header of"));
    real.remove_file(path);
    EXPECT_THAT(error(), AllOf(HasSubstr("No such file"), HasSubstr(path.string())));
    real.make_directory(path);
    EXPECT_THAT(error(), HasSubstr("Is a directory"));
}

// A header of a hundred thousand brackets must not take the stack.
TEST(Safetensors, DeepNestingIsAnError) {
    const ScratchFolder scratch;
    std::string header = "{\"a\":";
    for (int i = 0; i < 100000; ++i) header += "[";
    write_file(scratch.path() / "deep", header, 0);
    EXPECT_NE(error_of([&] { SafetensorsReader(real, scratch.path() / "deep"); }), "");
    for (int i = 0; i < 100000; ++i) header += "]";
    write_file(scratch.path() / "deep", header + "}", 0);
    EXPECT_THAT(error_of([&] { SafetensorsReader(real, scratch.path() / "deep"); }),
                HasSubstr("nested more than"));
    // Where a message would show the value.
    std::string deep = std::string(100000, '[') + std::string(100000, ']');
    write_file(scratch.path() / "deep",
               R"({"a":{"dtype":"F32","data_offsets":[0,4],"shape":[)" + deep + "]}}", 4);
    EXPECT_THAT(error_of([&] { SafetensorsReader(real, scratch.path() / "deep"); }),
                HasSubstr("nested more than"));
    write_text(real, scratch.path() / "model.safetensors.index.json", R"({"weight_map":{"a":)" + deep + "}}");
    EXPECT_THAT(error_of([&] { WeightFiles(real, scratch.path()); }), HasSubstr("nested more than"));
}

// Any single byte of a header replaced, and any cut: an Error or a file that reads, never a crash.
TEST(Safetensors, SurvivesEveryDamagedByte) {
    const ScratchFolder scratch;
    std::vector<float> values(6, 1);
    write_safetensors(
        real, scratch.path() / "good",
        {{"a", View(values.data(), DType::F32, {2, 3})}, {"b", View(values.data(), DType::F32, {1})}},
        {{"k", "v"}});
    const std::string good = read_text(real, scratch.path() / "good");
    const Path path = scratch.path() / "bad";
    int errors = 0;
    const auto attempt = [&](const std::string& text) {
        write_text(real, path, text);
        errors += !error_of([&] {
                       const SafetensorsReader reader(real, path);
                       for (const TensorInfo& tensor : reader.tensors()) {
                           std::vector<float> back(static_cast<size_t>(tensor.shape.numel()));
                           reader.read(tensor.name, View(back.data(), DType::F32, tensor.shape));
                       }
                   }).empty();
        real.remove_file(path);
    };
    for (size_t i = 0; i < good.size(); ++i) {
        for (const char with : {'\0', '9', '"', '}', '\xff', '-'}) {
            std::string bad = good;
            bad[i] = with;
            attempt(bad);
        }
        attempt(good.substr(0, i));
    }
    EXPECT_GT(errors, static_cast<int>(good.size()) * 3);
}

TEST(Safetensors, AFileThatShrinksWhileOpenIsAnError) {
    const ScratchFolder scratch;
    const Path path = scratch.path() / "a";
    std::vector<float> values(100, 1);
    write_safetensors(real, path, {{"x", View(values.data(), DType::F32, {100})}});
    const SafetensorsReader reader(real, path);
    std::filesystem::resize_file(path, std::filesystem::file_size(path) - 40);
    EXPECT_THAT(error_of([&] { reader.read("x", View(values.data(), DType::F32, {100})); }),
                AllOf(HasSubstr(path.string()), HasSubstr("40 more expected")));
}

TEST(WriteSafetensors, ReplacesOrLeavesTheOldOne) {
    const ScratchFolder scratch;
    const Path path = scratch.path() / "out.safetensors";
    std::vector<float> values = {1, 2};
    std::vector<BF16> narrow = {to_bf16(3)};
    const std::vector<NamedView> tensors = {{"narrow", View(narrow.data(), DType::BF16, {1})},
                                            {"x", View(values.data(), DType::F32, {2})}};
    write_safetensors(real, path, tensors);
    EXPECT_EQ(SafetensorsReader(real, path).tensors()[0].name, "x");  // wide first
    const std::string before = read_text(real, path);
    FaultFileSystem counting(Fault::None, 0);
    write_safetensors(counting, path, tensors);
    ASSERT_GT(counting.operations(), 5);
    values = {5, 6};
    for (int64_t n = 1; n <= counting.operations(); ++n) {
        FaultFileSystem files(Fault::Torn, n);
        EXPECT_NE(error_of([&] { write_safetensors(files, path, tensors); }), "") << n;
        EXPECT_EQ(read_text(real, path), before) << n;
    }
    EXPECT_EQ(real.list(scratch.path()).size(), 1u);
    write_safetensors(real, path, tensors);
    EXPECT_NE(read_text(real, path), before);
}

}  // namespace
}  // namespace moebius::checkpoint::testing
