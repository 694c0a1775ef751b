#include "moebius/data/count_model.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "moebius/base/check.h"

namespace moebius::data {
namespace {

constexpr int64_t kChunk = 64 << 10;

// Calls f(context, base) for every base of the ranges that has a whole context of `order` bases.
template <class Function>
void for_each_base(const Dataset& data, const std::vector<Range>& ranges, int order, const Function& f) {
    std::vector<int8_t> code(static_cast<size_t>(data.tokenizer().vocab_size()), -1);
    for (size_t base = 0; base < 4; ++base) {
        std::vector<int32_t> ids;
        for (const char letter : {"ACGT"[base], "acgt"[base]})
            data.tokenizer().encode_residues({&letter, 1}, ids);
        for (const int32_t id : ids) code[static_cast<size_t>(id)] = static_cast<int8_t>(base);
    }
    const uint64_t mask = (uint64_t{1} << (2 * order)) - 1;
    std::vector<int32_t> tokens;
    for (const Range& range : ranges) {
        uint64_t context = 0;
        int known = 0;  // bases of the context so far
        for (int64_t begin = range.begin; begin < range.end; begin += kChunk) {
            tokens.resize(static_cast<size_t>(std::min(kChunk, range.end - begin)));
            data.read(range.record, begin, tokens);
            for (const int32_t token : tokens) {
                const int8_t base = code[static_cast<size_t>(token)];
                if (base < 0) {
                    known = 0;
                    continue;
                }
                if (known == order) f(context, static_cast<uint64_t>(base));
                context = ((context << 2) | static_cast<uint64_t>(base)) & mask;
                known = std::min(known + 1, order);
            }
        }
    }
}

}  // namespace

CountModelLoss count_model_loss(const Dataset& data, const std::vector<Range>& training,
                                const std::vector<Range>& held_out, int order) {
    MOEBIUS_CHECK(order >= 0 && order <= 12, "order ", order);
    std::vector<std::array<int64_t, 4>> counts(size_t{1} << (2 * order));
    for_each_base(data, training, order, [&](uint64_t context, uint64_t base) { ++counts[context][base]; });

    std::vector<std::array<int64_t, 4>> seen(counts.size());
    for_each_base(data, held_out, order, [&](uint64_t context, uint64_t base) { ++seen[context][base]; });

    CountModelLoss loss;
    for (size_t context = 0; context < counts.size(); ++context) {
        double total = 4;
        for (const int64_t n : counts[context]) total += static_cast<double>(n);
        for (size_t base = 0; base < 4; ++base) {
            const double p = (static_cast<double>(counts[context][base]) + 1) / total;
            loss.nats -= static_cast<double>(seen[context][base]) * std::log(p);
            loss.predictions += seen[context][base];
        }
    }
    if (loss.predictions > 0) loss.nats /= static_cast<double>(loss.predictions);
    return loss;
}

}  // namespace moebius::data
