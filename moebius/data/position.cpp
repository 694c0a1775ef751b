#include "moebius/data/position.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "moebius/base/check.h"
#include "moebius/base/error.h"

namespace moebius::data {
namespace {

using Json = nlohmann::ordered_json;

// Item `index` of the shared stream, as a draw.
DrawRef item_at(const Position& position, int64_t index) {
    const auto pending = static_cast<int64_t>(position.start.pending.size());
    if (index < pending) return position.start.pending[static_cast<size_t>(index)];
    const int64_t draw = position.start.draw + index - pending;
    return {.epoch = position.start.epoch + draw / position.windows,
            .draw = draw % position.windows,
            .offset = 0};
}

std::string text_of(const std::optional<int64_t>& value) {
    return value ? std::to_string(*value) : "null";
}

// One position a rank, in the order of the ranks, all of one moment.
std::vector<Position> sorted_by_rank(const std::vector<std::string>& texts) {
    std::vector<Position> positions;
    for (const std::string& text : texts) positions.push_back(Position::parse(text));
    std::sort(positions.begin(), positions.end(),
              [](const Position& a, const Position& b) { return a.rank < b.rank; });
    for (size_t i = 0; i < positions.size(); ++i) {
        Position expected = positions[i];
        expected.rank = positions[0].rank + static_cast<int32_t>(i);
        expected.world = static_cast<int32_t>(positions.size());
        check_matches(positions[i], expected);
        Json a = Json::parse(positions[i].to_json()), b = Json::parse(positions[0].to_json());
        for (const char* own : {"rank", "items", "offset"}) a.erase(own), b.erase(own);
        if (positions[0].rank != 0 || a != b)
            throw Error("the data positions of the checkpoint's ranks do not belong together");
    }
    return positions;
}

}  // namespace

std::string Position::to_json() const {
    Json pending = Json::array();
    for (const DrawRef& ref : start.pending) pending.push_back({ref.epoch, ref.draw, ref.offset});
    const Json json = {
        {"format", 1},
        {"seed", seed},
        {"windows", windows},
        {"buffer_size", buffer_size},
        {"max_seq_length", max_seq_length},
        {"stride", stride ? Json(*stride) : Json(nullptr)},
        {"content", content},
        {"start", {{"epoch", start.epoch}, {"draw", start.draw}, {"pending", std::move(pending)}}},
        {"rank", rank},
        {"world", world},
        {"items", items},
        {"offset", offset},
    };
    return json.dump();
}

Position Position::parse(const std::string& text) {
    Position position;
    try {
        const Json json = Json::parse(text);
        if (json.at("format") != 1)
            throw Error(fmt::format("a data position of format {}", json.at("format").dump()));
        json.at("seed").get_to(position.seed);
        json.at("windows").get_to(position.windows);
        json.at("buffer_size").get_to(position.buffer_size);
        json.at("max_seq_length").get_to(position.max_seq_length);
        if (!json.at("stride").is_null()) position.stride = json.at("stride").get<int64_t>();
        json.at("content").get_to(position.content);
        json.at("start").at("epoch").get_to(position.start.epoch);
        json.at("start").at("draw").get_to(position.start.draw);
        for (const Json& ref : json.at("start").at("pending"))
            position.start.pending.push_back({ref.at(0), ref.at(1), ref.at(2)});
        json.at("rank").get_to(position.rank);
        json.at("world").get_to(position.world);
        json.at("items").get_to(position.items);
        json.at("offset").get_to(position.offset);
    } catch (const nlohmann::json::exception& error) {
        throw Error(fmt::format("the checkpoint's data position cannot be read: {}", error.what()));
    }
    const auto in_range = [&](const DrawRef& ref) {
        return ref.epoch >= 0 && ref.draw >= 0 && ref.draw < position.windows && ref.offset >= 0;
    };
    const bool valid = position.windows > 0 && position.world > 0 && position.rank >= 0 &&
                       position.rank < position.world && position.items >= 0 && position.offset >= 0 &&
                       in_range({position.start.epoch, position.start.draw, 0}) &&
                       std::all_of(position.start.pending.begin(), position.start.pending.end(), in_range);
    if (!valid) throw Error("the checkpoint's data position holds impossible values");
    return position;
}

void check_matches(const Position& saved, const Position& now) {
    const auto compare = [](std::string_view key, const std::string& then, const std::string& here) {
        if (then != here)
            throw Error(fmt::format(
                "{} was {} when the data position was saved and is {} now: the run cannot go on from "
                "it (put it back, or start anew with checkpoint.resume_from_checkpoint=false or another "
                "logger.run_dir)",
                key, then, here));
    };
    compare("seed", std::to_string(saved.seed), std::to_string(now.seed));
    compare("dataset.max_seq_length", std::to_string(saved.max_seq_length),
            std::to_string(now.max_seq_length));
    compare("dataset.stride", text_of(saved.stride), text_of(now.stride));
    compare("dataset.buffer_size", std::to_string(saved.buffer_size), std::to_string(now.buffer_size));
    compare("the training data's checksum (dataset.path, validation.fraction)", saved.content, now.content);
    compare("the number of training windows", std::to_string(saved.windows), std::to_string(now.windows));
    compare("the number of data ranks", std::to_string(saved.world), std::to_string(now.world));
    compare("the data rank", std::to_string(saved.rank), std::to_string(now.rank));
}

std::vector<std::string> resplit(const std::vector<std::string>& positions, int32_t new_world) {
    MOEBIUS_CHECK(!positions.empty() && new_world > 0, positions.size(), " positions to ", new_world);
    const std::vector<Position> old = sorted_by_rank(positions);
    const int64_t world = old[0].world;
    int64_t fewest = old[0].items, most = old[0].items;
    for (const Position& p : old) {
        const int64_t touched = p.items + (p.offset > 0 ? 1 : 0);
        fewest = std::min(fewest, p.items);
        most = std::max(most, touched);
    }
    // All items below fewest·world are used up, none from most·world on has been touched: look between. What
    // lies untouched after the last touched item stays with the stream.
    Position next = old[0];
    next.start.pending.clear();
    int64_t end = fewest * world;
    std::vector<DrawRef> left;
    for (int64_t index = fewest * world; index < most * world; ++index) {
        const Position& p = old[static_cast<size_t>(index % world)];
        const int64_t item = index / world;
        DrawRef ref = item_at(p, index);
        const bool begun = item == p.items && p.offset > 0;
        if (begun) ref.offset = p.offset;
        if (item >= p.items) left.push_back(ref);
        if (item < p.items || begun) {
            end = index + 1;
            next.start.pending = left;
        }
    }
    const auto old_pending = static_cast<int64_t>(old[0].start.pending.size());
    for (; end < old_pending; ++end) next.start.pending.push_back(item_at(old[0], end));
    const DrawRef first = item_at(old[0], end);
    next.start.epoch = first.epoch;
    next.start.draw = first.draw;
    next.world = new_world;
    next.items = next.offset = 0;

    std::vector<std::string> result;
    for (next.rank = 0; next.rank < new_world; ++next.rank) result.push_back(next.to_json());
    return result;
}

}  // namespace moebius::data
