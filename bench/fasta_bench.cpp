// How fast FASTA is read: parsed alone, and as training reads it.
#include "bench/bench.h"
#include "moebius/base/error.h"
#include "moebius/data/dataset.h"
#include "moebius/data/source.h"

namespace moebius::bench {

int run_fasta(Options options) {
    const auto runs = static_cast<int>(options.number("runs", 5));
    options.done(1);
    if (options.rest().empty()) throw Error("fasta: which file?");
    if (runs < 1) throw Error("--runs is at least 1");
    const std::string& file = options.rest()[0];
    Machine machine(1);
    print({{"machine", machine_json(machine)}});
    const std::shared_ptr<const data::Tokenizer> tokenizer = data::make_tokenizer("nucleotide");
    std::vector<double> parsed, held;
    int64_t residues = 0, tokens = 0;
    // The first run of each brings the file into memory and does not count.
    for (int i = -1; i < runs; ++i) {
        double start = seconds_now();
        const std::unique_ptr<data::Source> source = data::open_source(file);
        residues = 0;
        for (data::RecordHead head; source->next(head);) {
            for (;;) {
                const std::string_view piece = source->piece();
                if (piece.empty()) break;
                residues += static_cast<int64_t>(piece.size());
            }
        }
        if (i >= 0) parsed.push_back(seconds_now() - start);
        start = seconds_now();
        tokens = data::Dataset::open({.paths = {file}, .tokenizer = tokenizer})->tokens();
        if (i >= 0) held.push_back(seconds_now() - start);
    }
    if (residues != tokens) throw Error(file + ": parsing and reading it count differently");
    print({{"residues", residues}, {"parse_seconds", parsed}, {"read_seconds", held}});
    return 0;
}

}  // namespace moebius::bench
