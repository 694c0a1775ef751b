#include "tests/gpu/mx_products.h"

#include <cstring>
#include <vector>

#include "moebius/base/error.h"
#include "moebius/ops/grouped_gemm/grouped_gemm.h"
#include "moebius/ops/grouped_gemm_quantized/grouped_gemm_quantized.h"
#include "moebius/ops/quantize/quantize.h"
#include "moebius/runtime/transfer.h"
#include "moebius/tensor/tensor.h"

namespace moebius::gpu_tests {
namespace {

using ops::GemmKind;

struct Sizes {
    std::vector<int64_t> splits;
    int64_t capacity, out, in;
};
const Sizes kUsual{{300, 0, 1290, 17, 1, 700}, 2400, 2048, 1552};  // 48.5 blocks of 32
// Several segments an expert, several times round the rings: of Forward and Dgrad by rows, of Wgrad by `out`.
const Sizes kSegments{{4700, 0, 2300, 130, 2600, 0, 9, 0}, 10000, 6144, 1024};

enum class Numbers { Usual, Extreme, WithNaN };

std::string_view name(Numbers numbers) {
    return numbers == Numbers::Usual ? "usual" : numbers == Numbers::Extreme ? "extreme" : "NaN";
}

struct Filled {
    Tensor data, scale, wide;  // wide: dequantized
    Operand operand;
};

class MxProducts {
  public:
    MxProducts(const Sizes& sizes, const char* variant, const Exec& exec,
               const std::function<void(const std::string&, const std::string&)>& report)
        : exec_(exec),
          report_(report),
          sizes_(sizes),
          forced_{{"grouped_gemm", "sm90"}, {"grouped_gemm_quantized", variant}} {
        exec_.forced = &forced_;
        const std::vector<int64_t>& splits = sizes_.splits;
        splits_ = Tensor::empty("mx.splits", {static_cast<int64_t>(splits.size())}, DType::I64, exec_);
        copy_to_device(splits_.view().data, splits.data(), splits.size() * sizeof(int64_t), exec_);
        synchronize(exec_);
    }

    void run(std::initializer_list<Numbers> all) {
        for (const Numbers numbers : all) {
            for (const GemmKind kind : {GemmKind::Forward, GemmKind::Dgrad, GemmKind::Wgrad}) {
                for (const DType a : {DType::F8E4M3, DType::F8E5M2}) compare(kind, a, numbers);
            }
        }
    }

  private:
    Filled fill(const char* text, DType element, Direction direction, const MatrixShape& matrix,
                Numbers numbers) {
        const Format format = make_format(element, ScaleKind::MX32, direction, matrix.weight, true);
        const OperandShapes shapes = operand_shapes(format, direction, matrix);
        // Drawn up to a prime, then repeated: numbers in one place of the tensor are not those of another.
        constexpr size_t kDrawn = 1000003;
        auto state = static_cast<uint64_t>(text[3]);  // "mx.a", "mx.b"
        const auto below = [&state](uint64_t bound) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            return static_cast<int>((state >> 33) % bound);
        };
        const int largest = element == DType::F8E4M3 ? 0x7E : 0x7B;
        const auto code = [&](size_t i) {
            if (numbers == Numbers::WithNaN && i == 77777) return 0xFF;
            const int any = below(256);
            return (any & 127) > largest ? any - 8 : any;
        };
        const auto scale = [&](size_t i) {
            if (numbers == Numbers::WithNaN && i % 100003 == 77) return i % 2 == 0 ? 255 : 254;
            return numbers == Numbers::Extreme && i % 3 == 0 ? below(8) : 115 + below(24);
        };
        const auto draw = [](const Shape& shape, const auto& number) {
            std::vector<uint8_t> bytes(static_cast<size_t>(shape.numel()));
            for (size_t i = 0; i < bytes.size(); ++i)
                bytes[i] = i < kDrawn ? static_cast<uint8_t>(number(i)) : bytes[i - kDrawn];
            return bytes;
        };
        const std::vector<uint8_t> codes = draw(shapes.data, code), scales = draw(shapes.scale, scale);
        Filled filled{.data = Tensor::empty("mx.data", shapes.data, element, exec_),
                      .scale = Tensor::empty("mx.scale", shapes.scale, shapes.scale_dtype, exec_),
                      .wide = Tensor::empty(text, shapes.data, DType::BF16, exec_)};
        copy_to_device(filled.data.view().data, codes.data(), codes.size(), exec_);
        copy_to_device(filled.scale.view().data, scales.data(), scales.size(), exec_);
        synchronize(exec_);
        filled.operand = {.data = filled.data, .scale = filled.scale, .format = format};
        ops::dequantize({.from = filled.operand,
                         .direction = direction,
                         .split_sizes = matrix.weight ? View() : splits_.view(),
                         .out = filled.wide},
                        exec_);
        return filled;
    }

    void compare(GemmKind kind, DType a_type, Numbers numbers) {
        const bool wgrad = kind == GemmKind::Wgrad, forward = kind == GemmKind::Forward;
        const auto experts = static_cast<int64_t>(sizes_.splits.size());
        const int64_t capacity = sizes_.capacity, out_features = sizes_.out, in_features = sizes_.in;
        const MatrixShape rows_a{capacity, forward ? in_features : out_features, experts, false},
            rows_b{capacity, in_features, experts, false}, weight{out_features, in_features, experts, true};
        const Filled a = fill("mx.a", a_type, wgrad ? Direction::Column : Direction::Row, rows_a, numbers);
        const Filled b = fill("mx.b", DType::F8E4M3, forward ? Direction::Row : Direction::Column,
                              wgrad ? rows_b : weight, numbers);
        const Shape shape = wgrad     ? Shape{experts, out_features, in_features}
                            : forward ? Shape{capacity, out_features}
                                      : Shape{capacity, in_features};
        for (const DType out : {DType::BF16, DType::F32}) {
            for (const float beta : {0.0f, 1.0f}) {
                if (beta != 0 && !wgrad) continue;
                const std::string text = std::string(forward ? "forward"
                                                     : wgrad ? "wgrad"
                                                             : "dgrad") +
                                         " " + forced_.at("grouped_gemm_quantized") + " " +
                                         std::string(moebius::name(a_type)) + " " +
                                         std::string(moebius::name(out)) + (beta != 0 ? " added, " : ", ") +
                                         std::string(name(numbers));
                try {
                    const std::vector<uint8_t> wide = bytes_of(shape, out, [&](const View& to) {
                        ops::grouped_gemm({.kind = kind,
                                           .a = a.wide,
                                           .b = b.wide,
                                           .out = to,
                                           .split_sizes = splits_,
                                           .bias = {},
                                           .bias_scale = {},
                                           .beta = beta},
                                          exec_);
                    });
                    const std::vector<uint8_t> narrow = bytes_of(shape, out, [&](const View& to) {
                        ops::grouped_gemm_quantized({.kind = kind,
                                                     .a = a.operand,
                                                     .b = b.operand,
                                                     .out = to,
                                                     .split_sizes = splits_,
                                                     .beta = beta},
                                                    exec_);
                    });
                    report_(text, difference(wide, narrow, shape, bits(out) / 8));
                } catch (const Error& error) {
                    report_(text, std::string("skipped: ") + error.what());
                }
            }
        }
    }

    // What `run` makes of an output in which every byte is 1.
    template <class Run>
    std::vector<uint8_t> bytes_of(const Shape& shape, DType dtype, Run&& run) {
        const Tensor out = Tensor::empty("mx.out", shape, dtype, exec_);
        fill_bytes(out.view().data, 1, static_cast<size_t>(out.view().bytes()), exec_);
        run(out.view());
        std::vector<uint8_t> bytes(static_cast<size_t>(out.view().bytes()));
        copy_to_host(bytes.data(), out.view().data, bytes.size(), exec_);
        synchronize(exec_);
        return bytes;
    }

    static std::string difference(const std::vector<uint8_t>& want, const std::vector<uint8_t>& got,
                                  const Shape& shape, int64_t size) {
        if (want == got) return {};
        const int64_t columns = shape[shape.rank() - 1];
        int64_t count = 0, first = -1;
        for (size_t i = 0; i < want.size(); i += static_cast<size_t>(size)) {
            if (std::memcmp(&want[i], &got[i], static_cast<size_t>(size)) == 0) continue;
            if (count++ == 0) first = static_cast<int64_t>(i) / size;
        }
        uint32_t a = 0, b = 0;
        std::memcpy(&a, &want[static_cast<size_t>(first * size)], static_cast<size_t>(size));
        std::memcpy(&b, &got[static_cast<size_t>(first * size)], static_cast<size_t>(size));
        return std::to_string(count) + " of " + std::to_string(shape.numel()) +
               " numbers differ from the bf16 product's, first in row " + std::to_string(first / columns) +
               ", column " + std::to_string(first % columns) + ": bits " + std::to_string(b) +
               " instead of " + std::to_string(a);
    }

    Exec exec_;
    const std::function<void(const std::string&, const std::string&)>& report_;
    const Sizes& sizes_;
    const ForcedVariants forced_;
    Tensor splits_;
};

}  // namespace

void test_mx_products(const Exec& exec,
                      const std::function<void(const std::string&, const std::string&)>& report) {
    for (const char* variant : {"sm90_bf16", "sm90_bf16_ring"})
        MxProducts(kUsual, variant, exec, report).run({Numbers::Usual, Numbers::Extreme, Numbers::WithNaN});
    MxProducts(kSegments, "sm90_bf16_ring", exec, report).run({Numbers::Usual});
}

}  // namespace moebius::gpu_tests
