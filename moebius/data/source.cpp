#include "moebius/data/source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "moebius/base/error.h"
#include "moebius/data/bgzf_reader.h"
#include "moebius/data/fasta.h"

namespace moebius::data {

const std::vector<FormatRow>& formats() {
    static const std::vector<FormatRow> rows = {
        {"fasta",
         {".fa", ".fasta", ".fna", ".ffn", ".faa", ".frn", ".fas", ".fsa", ".mpfa"},
         &sniff_fasta,
         &open_fasta},
    };
    return rows;
}

std::unique_ptr<Source> open_source(const std::string& path, std::string_view format) {
    std::vector<std::string_view> names;
    for (const FormatRow& row : formats()) {
        if (row.name == format) return row.open(path);
        names.push_back(row.name);
    }
    if (format != "auto")
        throw Error(
            fmt::format("dataset.format = {} is not known; known: auto, {}", format, fmt::join(names, ", ")));

    std::string start(4096, '\0');
    start.resize(BgzfReader(path).read(start.data(), start.size(), 1));
    for (const FormatRow& row : formats())
        if (row.sniff(start)) return row.open(path);
    throw Error(fmt::format("{}: line 1: {} (dataset.path; formats that can be read: {})", path,
                            why_not_fasta(start), fmt::join(names, ", ")));
}

}  // namespace moebius::data
