// The MX products of Blackwell as their kernel computes them: its own source, every thread of it, on a model
// of such a card. Loads, products and threads overlap as they happen to, so that a barrier forgotten or
// passed in the wrong phase gives wrong numbers, or waits for ever.
#include <gtest/gtest.h>

#include <thread>

#include "moebius/ops/grouped_gemm_quantized/sm100_store.cuh"
#include "moebius/ops/grouped_mlp_quantized/sm100_quantize.cuh"
#include "tests/ops/sm100_model.h"

namespace moebius::ops::sm100 {

// What a kernel calls its dynamic shared memory.
alignas(1024) unsigned char moebius_stages[227 * 1024];

namespace {

struct ProductOnHost {
    Machine machine;

    ProductOnHost() {
        machine.shared = moebius_stages;
        host_kernel::Engines& engines = host_kernel::engines();
        engines.shared = moebius_stages;
        engines.load_box = [this](uint32_t to, const CUtensorMap& map, int x, int y, int z) {
            machine.load_box(to, {map.data, map.columns, map.rows, map.experts}, {x, y, z});
        };
        engines.copy_scales = [this](uint32_t to, uint64_t from) {
            machine.copy_scales(static_cast<int>(to), from);
        };
        engines.product = [this](uint32_t sums, uint64_t a, uint64_t b, uint32_t bits, uint32_t scale_a,
                                 uint32_t scale_b, bool add) {
            machine.multiply(static_cast<int>(sums), a, b, bits, static_cast<int>(scale_a),
                             static_cast<int>(scale_b), add);
        };
        engines.tensor_word = [this](uint32_t at) {
            return machine.cell(static_cast<int>(at >> 16), static_cast<int>(at & 0xFFFF));
        };
    }

    // One block after the other; a block's threads and engines at a time.
    template <class T, class Epilogue>
    void launch(const ProductArgs& args, const typename Epilogue::Args& epilogue, unsigned blocks) {
        gridDim.x = blocks;
        for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
            std::memset(moebius_stages, 0x7F, sizeof moebius_stages);
            host_kernel::warps.clear();
            for (int warp = 0; warp < kThreads / 32; ++warp)
                host_kernel::warps.push_back(std::make_unique<host_kernel::Warp>());
            host_kernel::block_meeting = std::make_unique<std::barrier<>>(kThreads);
            host_kernel::engines().start(blockIdx.x);
            std::vector<std::thread> threads;
            for (unsigned thread = 0; thread < kThreads; ++thread) {
                threads.emplace_back([&args, &epilogue, thread] {
                    threadIdx.x = thread;
                    grouped_product_mx_sm100<T, Epilogue>(args, epilogue);
                });
            }
            for (std::thread& thread : threads) thread.join();
            EXPECT_EQ(host_kernel::engines().stop(), 0u);
        }
    }
};

CUtensorMap tensor_map(const Map& map) {
    return {map.data, map.columns, map.rows, map.experts};
}

template <class T>
ProductArgs args_of(const Simulation<T>& product, const Problem& p) {
    return {.a = tensor_map(product.map_a()),
            .b = tensor_map(product.map_b()),
            .shape = product.shape(),
            .split_sizes = p.sizes.data(),
            .split_is_i64 = 0};
}

// A block computes several tiles, the other fewer.
template <class T>
void expect_product(const Problem& p) {
    Simulation<T> product(p);
    ProductOnHost host;
    host.launch<T, Store<false, false>>(args_of(product, p),
                                        {.data = product.out(),
                                         .row_stride = product.columns(),
                                         .expert_stride = T::kReduceRows ? p.n * product.columns() : 0,
                                         .columns = product.columns()},
                                        2);
    product.compare();
}

TEST(Sm100OnHost, Forward) {
    expect_product<ForwardTraits>({.sizes = {140, 0, 17, 128, 1}, .capacity = 300, .n = 272, .k = 688});
}
TEST(Sm100OnHost, Dgrad) {
    expect_product<DgradTraits>({.sizes = {140, 0, 17, 128, 1}, .capacity = 300, .n = 272, .k = 272});
}
TEST(Sm100OnHost, Wgrad) {
    expect_product<WgradTraits>({.sizes = {300, 0, 17, 128, 129}, .capacity = 600, .n = 144, .k = 272});
}

TEST(Sm100OnHost, AddsToWhatIsThere) {
    const Problem p{.sizes = {40, 0, 65}, .capacity = 110, .n = 48, .k = 80};
    Simulation<WgradTraits> product(p);
    const int64_t expert = int64_t{p.n} * p.k;
    std::fill(product.out(), product.out() + p.experts() * expert, 2.0f);
    ProductOnHost().launch<WgradTraits, Store<false, true>>(
        args_of(product, p),
        {.data = product.out(), .row_stride = p.k, .expert_stride = expert, .columns = p.k}, 1);
    product.compare(2.0);
}

template <bool kAdd>
void expect_bf16() {
    const Problem p{.sizes = {40, 0, 65}, .capacity = 110, .n = 80, .k = 80};
    Simulation<ForwardTraits> product(p);
    const uint16_t two = to_bf16(2.0f).bits;
    std::vector<uint16_t> out(static_cast<size_t>(p.capacity * p.n), two);
    ProductOnHost().launch<ForwardTraits, Store<true, kAdd>>(
        args_of(product, p), {.data = out.data(), .row_stride = p.n, .expert_stride = 0, .columns = p.n}, 1);
    int row = 0;
    for (int e = 0; e < p.experts(); ++e) {
        for (int i = 0; i < p.sizes[static_cast<size_t>(e)]; ++i, ++row) {
            for (int j = 0; j < p.n; ++j) {
                const auto sum = static_cast<float>(product.sum(e, i, j) + (kAdd ? 2.0 : 0.0));
                ASSERT_EQ(out[static_cast<size_t>(row * p.n + j)], to_bf16(sum).bits);
            }
        }
    }
    for (size_t at = static_cast<size_t>(row * p.n); at < out.size(); ++at) ASSERT_EQ(out[at], two);
}
TEST(Sm100OnHost, RoundsToBf16) {
    expect_bf16<false>();
    expect_bf16<true>();
}

// ---- The gate-up product whose epilogue makes codes -------------------------------------------------------

using Bytes = std::vector<uint8_t>;
constexpr uint8_t kUntouched = 0xAA;

struct Made {
    std::vector<uint16_t> c;
    Bytes row, row_scale, column, column_scale;

    Made(int64_t rows, int64_t blocks, int64_t columns)
        : c(static_cast<size_t>(rows * 2 * columns), 0xAAAA),
          row(static_cast<size_t>(rows * columns), kUntouched),
          row_scale(static_cast<size_t>(rows * columns / 32), kUntouched),
          column(row),
          column_scale(static_cast<size_t>(blocks * columns), kUntouched) {}
    bool operator==(const Made&) const = default;
};

// Codes of numbers that share a scale, which is returned.
uint8_t quantize(const std::vector<float>& numbers, const std::vector<uint8_t*>& codes) {
    float amax = 0.0f;
    for (const float number : numbers) amax = std::max(amax, std::abs(number));
    const uint32_t code = ptx::e8m0_roundup(std::bit_cast<uint32_t>(amax * (1.0f / 448.0f)));
    const float factor = ptx::e8m0_reciprocal(code);
    for (size_t i = 0; i < numbers.size(); ++i) *codes[i] = to_f8e4m3(numbers[i] * factor).bits;
    return static_cast<uint8_t>(code);
}

TEST(Sm100OnHost, GateUpMakesTheActivationsCodesBothWays) {
    const int intermediate = 160;
    const Problem p{.sizes = {140, 0, 17, 64}, .capacity = 240, .n = 2 * intermediate, .k = 144};
    Simulation<GateUpTraits> product(p);
    const int64_t blocks = 5 + 0 + 1 + 2;
    const ptx::GluConstants constants{.limit = 0, .alpha = 1.0f / 64, .offset = 0};
    std::vector<float> scales;
    for (int i = 0; i < p.capacity; ++i) scales.push_back(0.5f + 0.125f * static_cast<float>(i % 7));

    Made made(p.capacity, blocks, intermediate), expected = made;
    const auto at = [](auto& values, int64_t i) { return values.data() + i; };
    int first = 0, block = 0;
    for (int e = 0; e < p.experts(); ++e) {
        const int rows = p.sizes[static_cast<size_t>(e)];
        std::vector<std::vector<float>> activation;
        for (int i = 0; i < rows; ++i) {
            activation.emplace_back();
            for (int j = 0; j < intermediate; ++j) {
                const BF16 gate = to_bf16(static_cast<float>(product.sum(e, i, j)));
                const BF16 up = to_bf16(static_cast<float>(product.sum(e, i, intermediate + j)));
                const int64_t row = first + i;
                *at(expected.c, row * p.n + j) = gate.bits;
                *at(expected.c, row * p.n + intermediate + j) = up.bits;
                const auto pair = ptx::glu_pair<false, false>(to_float(gate), to_float(up), constants);
                activation.back().push_back(
                    to_float(to_bf16(ptx::glu_forward(pair, scales[static_cast<size_t>(row)]))));
            }
        }
        const auto fill = [&](Bytes& codes, int i0, int i1, int j0, int j1) {
            std::vector<float> numbers;
            std::vector<uint8_t*> places;
            for (int i = i0; i < i1; ++i) {
                for (int j = j0; j < j1; ++j) {
                    numbers.push_back(activation[static_cast<size_t>(i)][static_cast<size_t>(j)]);
                    places.push_back(at(codes, int64_t{first + i} * intermediate + j));
                }
            }
            return quantize(numbers, places);
        };
        for (int i = 0; i < rows; ++i) {
            for (int b = 0; b < intermediate / 32; ++b) {
                *at(expected.row_scale, int64_t{first + i} * (intermediate / 32) + b) =
                    fill(expected.row, i, i + 1, 32 * b, 32 * b + 32);
            }
        }
        for (int i = 0; i < rows; i += 32, ++block) {
            for (int j = 0; j < intermediate; ++j)
                *at(expected.column_scale, int64_t{block} * intermediate + j) =
                    fill(expected.column, i, std::min(i + 32, rows), j, j + 1);
        }
        first += rows;
    }

    auto* const c = reinterpret_cast<__nv_bfloat16*>(made.c.data());
    ProductOnHost().launch<GateUpTraits, QuantizeActivation<false>>(args_of(product, p),
                                                                    {.gate = c,
                                                                     .up = c + intermediate,
                                                                     .c_stride = p.n,
                                                                     .row = made.row.data(),
                                                                     .column = made.column.data(),
                                                                     .row_scale = made.row_scale.data(),
                                                                     .column_scale = made.column_scale.data(),
                                                                     .columns = intermediate,
                                                                     .scales = scales.data(),
                                                                     .reciprocal = 1.0f / 448.0f,
                                                                     .constants = constants},
                                                                    2);
    EXPECT_EQ(made.c, expected.c);
    EXPECT_EQ(made.row, expected.row);
    EXPECT_EQ(made.row_scale, expected.row_scale);
    EXPECT_EQ(made.column, expected.column);
    EXPECT_EQ(made.column_scale, expected.column_scale);
    EXPECT_NE(*std::max_element(made.row_scale.begin(), made.row_scale.begin() + first), made.row_scale[0]);
}

}  // namespace
}  // namespace moebius::ops::sm100
