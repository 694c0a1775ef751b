#include "moebius/checkpoint/manifest.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "moebius/base/checksum.h"
#include "moebius/base/error.h"
#include "moebius/checkpoint/json_text.h"

namespace moebius::checkpoint {

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kFormat = 1;

// The last member, made by hand: it sums all bytes before it.
std::string seal(const std::string& body) {
    return fmt::format(",\n  \"checksum\": \"{}\"\n}}\n", moebius::checksum_of(body.data(), body.size()));
}

Manifest from_json(const Json& document, const std::string& where) {
    const int64_t format = document.at("format").get<int64_t>();
    if (format != kFormat)
        throw Error(fmt::format("{}: written in format {} by another version of Moebius; this one reads {}",
                                where, format, kFormat));
    Manifest manifest{.step = document.at("step").get<int64_t>(),
                      .world_size = document.at("world_size").get<int64_t>(),
                      .trainer = document.at("trainer").dump(),
                      .files = {}};
    constexpr int64_t kMostRanks = 100'000;  // as many as five digits of an optimizer file's name number
    if (manifest.step < 0 || manifest.world_size < 1 || manifest.world_size > kMostRanks)
        throw Error(
            fmt::format("{}: step {} of {} ranks cannot be", where, manifest.step, manifest.world_size));
    for (const auto& [name, file] : document.at("files").items())
        manifest.files.push_back(
            {name, file.at("bytes").get<int64_t>(), file.at("checksum").get<std::string>()});
    return manifest;
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
    check_json_object(manifest.trainer, "the trainer's state");
    Json document;
    document["format"] = kFormat;
    document["step"] = manifest.step;
    document["world_size"] = manifest.world_size;
    document["trainer"] = Json::parse(manifest.trainer);
    document["files"] = Json::object();
    for (const FileRecord& file : manifest.files)
        document["files"][file.name] = {{"bytes", file.bytes}, {"checksum", file.checksum}};
    std::string body = document.dump(2);
    body.resize(body.size() - 2);  // "\n}"
    return body + seal(body);
}

Manifest parse_manifest(const std::string& text, const std::string& where) {
    const size_t seal_bytes = seal("").size();
    if (text.size() <= seal_bytes) throw Error(where + ": cut short");
    const std::string body = text.substr(0, text.size() - seal_bytes);
    if (text.substr(body.size()) != seal(body)) throw Error(where + ": damaged, its own checksum differs");
    check_json_object(text, where);
    try {
        return from_json(Json::parse(text), where);
    } catch (const Json::exception& error) {
        throw Error(fmt::format("{}: not written by Moebius: {}", where, error.what()));
    }
}

}  // namespace moebius::checkpoint
