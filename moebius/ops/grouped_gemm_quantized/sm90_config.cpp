#include <algorithm>
#include <utility>

#include "moebius/ops/grouped_gemm/sm90_config.h"
#include "moebius/ops/grouped_gemm_quantized/sm90.h"

namespace moebius::ops::sm90 {
namespace {

// Reasons of any product's sizes and places.
std::string why_not_sizes(const GroupedGemmQuantizedArgs& args) {
    const int64_t experts = args.split_sizes.size(0), columns = args.out.size(args.out.rank() - 1);
    if (experts > kMostExperts)
        return "has " + std::to_string(experts) + " experts, more than " + std::to_string(kMostExperts);
    if (args.a.data.size(1) == 0 && args.kind != GemmKind::Wgrad) return "a has no columns";
    if (columns % 8 != 0) return "out has " + std::to_string(columns) + " columns, not a multiple of 8";
    return {};
}
std::string why_no_maps(const GroupedGemmQuantizedArgs& args) {
    for (const auto& [view, name] : {std::pair{&args.a.data, "a"}, {&args.b.data, "b"}, {&args.out, "out"}}) {
        if (const std::string reason = why_no_map(*view, name); !reason.empty()) return reason;
    }
    return {};
}

std::string why_not_transposed(const GroupedGemmQuantizedArgs& args) {
    const int64_t depth = args.a.data.size(1);
    if (depth % 16 != 0) return "sums over " + std::to_string(depth) + " numbers, not a multiple of 16";
    if (args.a.format.scale != ScaleKind::Block128) return {};
    if (const std::string reason = why_no_map(args.a.scale, "a's scale"); !reason.empty()) return reason;
    return args.kind == GemmKind::Wgrad ? why_no_map(args.b.scale, "b's scale") : std::string();
}

// Tiles of the bf16 product.
constexpr int64_t kRingTileRows = 128, kRingTileColumns = 256;
// A band's rows, which meet all columns, stay in the L2; the ring's bytes, where it may choose. Bands of half
// as many bytes are 3% slower where the depth is large.
constexpr int64_t kRingBandBytes = 32 << 20, kRingBytes = 256 << 20, kMostBand = 16, kLeastSlots = 4;
// What the ring holds is multiplied in two and a half rounds of a card's blocks: the round that runs, what
// the next needs, and half a round for those that widen. At the start it takes more than one.
constexpr int64_t kRingTiles = 330, kTilesAtOnce = 200;
// Rings where both operands take more than this, a fourth of it would be saved, and a mean expert has so many
// tiles: a card takes several smaller ones at a time, and the rings wait at each.
constexpr int64_t kMostWhole = int64_t{512} << 20, kLeastTiles = 64;

// A segment ends with a warp's stores on their way and nothing else, so there are not many.
constexpr int64_t kSegments = 16;
// Measured on an H200: FLOP/s of products; bytes/s that their idle warps (three; of Wgrad two) read and
// write.
constexpr double kProduct = 650e12, kIdle = 1.3e12, kIdleOfWgrad = 0.9e12;

}  // namespace

WideningPlan plan_widening(const GroupedGemmQuantizedArgs& args) {
    WideningPlan plan;
    const int64_t experts = args.split_sizes.size(0);
    plan.each = std::max<int64_t>(1, (experts + kSegments - 1) / kSegments);
    plan.segments = (experts + plan.each - 1) / plan.each;
    const auto bytes = 3.0 * static_cast<double>(args.a.data.numel() + args.b.data.numel());
    const double meanwhile =
        cost(args).flops / kProduct * (args.kind == GemmKind::Wgrad ? kIdleOfWgrad : kIdle);
    const double share = bytes > meanwhile ? meanwhile / bytes : 1.0;
    const auto ahead = static_cast<int64_t>(share * static_cast<double>(plan.segments));
    plan.at_once = std::max<int64_t>(1, plan.segments - ahead);
    return plan;
}

RingPlan plan_ring(const GroupedGemmQuantizedArgs& args) {
    const bool wgrad = args.kind == GemmKind::Wgrad;
    const auto units = [](int64_t count, int64_t unit) { return (count + unit - 1) / unit; };
    const int64_t experts = std::max<int64_t>(1, args.split_sizes.size(0)), rows = args.a.data.size(0);
    const int64_t depth = wgrad ? rows / experts : args.a.data.size(1);
    const int64_t column_units =
        std::max<int64_t>(1, units(args.out.size(args.out.rank() - 1), kRingTileColumns));
    const int64_t row_units = units(wgrad ? args.out.size(1) : rows, kRingTileRows);
    const int64_t mean_units = wgrad ? row_units : units(rows / experts, kRingTileRows);
    // A unit's rows as the product reads them, and of the ring.
    const int64_t read = kRingTileRows * 2 * std::max<int64_t>(1, depth);
    const int64_t held = kRingTileRows * (wgrad ? std::max<int64_t>(1, rows) : args.a.data.size(1));
    RingPlan plan;
    plan.tiles = mean_units * column_units;
    const int64_t most = std::min(kRingBandBytes / read, kRingBytes / (2 * held * kLeastSlots));
    plan.band = std::clamp<int64_t>(std::min(most, kMostBand), 1, std::max<int64_t>(1, row_units));
    plan.slots = std::max(kLeastSlots, units(kRingTiles, plan.band * column_units));
    plan.at_once = std::clamp<int64_t>(units(kTilesAtOnce, plan.band * column_units), 1, plan.slots);
    plan.segments =
        experts * (wgrad ? units(row_units, plan.band) : 1) + (wgrad ? 0 : units(row_units, plan.band));
    plan.a_elements = plan.slots * plan.band * held;
    if (wgrad) {
        plan.b_elements = args.b.data.numel();
        return plan;
    }
    const int64_t weight = std::max<int64_t>(1, args.b.data.numel() / experts);
    const bool many = kRingBytes / 2 / (2 * weight) > plan.slots;
    plan.b_slots = std::min(experts, many ? plan.slots + 1 : 2);
    plan.b_elements = plan.b_slots * weight;
    return plan;
}

std::string why_not(const GroupedGemmQuantizedArgs& args, const Exec&) {
    if (args.a.format.scale == ScaleKind::MX32)
        return "takes tensor and block128 scales, not " + std::string(name(args.a.format.scale));
    if (args.b.data.dtype != DType::F8E4M3)
        return "takes b in " + std::string(name(DType::F8E4M3)) + ", not " +
               std::string(name(args.b.data.dtype));
    if (args.beta != 0 && args.kind != GemmKind::Wgrad) return "adds to what is there in wgrad only";
    if (const std::string reason = why_not_sizes(args); !reason.empty()) return reason;
    if (const std::string reason = why_not_transposed(args); !reason.empty()) return reason;
    return why_no_maps(args);
}

std::string why_not_bf16(const GroupedGemmQuantizedArgs& args, const Exec& exec) {
    if (const std::string reason = why_not_bf16_ring(args, exec); !reason.empty()) return reason;
    const int64_t whole = 2 * (args.a.data.numel() + args.b.data.numel());
    const RingPlan rings = plan_ring(args);
    if (whole <= kMostWhole || 4 * rings.bytes() > 3 * whole || rings.tiles < kLeastTiles) return {};
    return "would hold both operands in bf16, " + std::to_string(whole >> 20) + " MiB, more than " +
           std::to_string(kMostWhole >> 20) + "; rings need " + std::to_string(rings.bytes() >> 20);
}

// MX operands lie untransposed: of Forward both along the depth, of Dgrad b across it, of Wgrad both. Codes
// are read as vectors, and so are scales across the depth.
std::string why_not_bf16_ring(const GroupedGemmQuantizedArgs& args, const Exec&) {
    if (args.a.format.scale != ScaleKind::MX32)
        return "takes mx32 scales, not " + std::string(name(args.a.format.scale));
    const bool wgrad = args.kind == GemmKind::Wgrad, forward = args.kind == GemmKind::Forward;
    if (args.beta != 0 && !wgrad) return "adds to what is there in wgrad only";
    if (const std::string reason = why_not_sizes(args); !reason.empty()) return reason;
    for (const auto& [operand, name] : {std::pair{&args.a, "a"}, {&args.b, "b"}}) {
        const int64_t columns = operand->data.size(operand->data.rank() - 1);
        if (columns % 16 != 0)
            return std::string(name) + " has " + std::to_string(columns) + " columns, not a multiple of 16";
    }
    if (wgrad) {
        if (const std::string reason = why_no_map(args.a.scale, "a's scale"); !reason.empty()) return reason;
    }
    if (!forward) {
        if (const std::string reason = why_no_map(args.b.scale, "b's scale"); !reason.empty()) return reason;
    }
    return why_no_maps(args);
}

}  // namespace moebius::ops::sm90
