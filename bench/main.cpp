// moebius_bench COMMAND …: what `make bench` measures with.
#include <cstdio>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "moebius/base/error.h"

namespace {

constexpr const char* kHelp =
    "moebius_bench ops [FILTER] [--threads=N] [--runs=N] [--milliseconds=500]\n"
    "    times every operation x dtype x variant of the CPU, where \"op/case\" contains FILTER: N runs, or "
    "as many as "
    "take\n"
    "    so long; each variant is compared with plain loops first, in one of the tests' cases\n"
    "moebius_bench step [--mode=loop|grouped_linear|fused_grouped_mlp] [--dtype=fp32|bf16] [--threads=N]\n"
    "                   [--rows=8] [--length=1024] [--tokens=FILE of int32]\n"
    "    reads lines from standard input: step, sgemm, quit; answers each with seconds\n"
    "moebius_bench train [--config=bench_8x7b_layers] [--configs=DIR] [--rows=2] [--length=8192] [--warm=5] "
    "[--steps=20]\n"
    "                    [KEY=VALUE…]\n"
    "        steps of a configuration on random tokens, queued without waiting: their times, the host's time "
    "to\n"
    "        queue one, memory by owner, the variants taken\n"
    "moebius_bench fasta FILE [--runs=N]\n"
    "    seconds of reading FILE: parsed, and parsed and held as tokens\n";

int dispatch(const std::string& command, moebius::bench::Options options) {
    if (command == "ops") return moebius::bench::run_ops(std::move(options));
    if (command == "step") return moebius::bench::run_step(std::move(options));
    if (command == "train") return moebius::bench::run_train(std::move(options));
    if (command == "fasta") return moebius::bench::run_fasta(std::move(options));
    throw moebius::Error("no command '" + command + "'\n" + kHelp);
}

}  // namespace

int main(int argc, char** argv) {
    const std::vector<std::string> words(argv + 1, argv + argc);
    if (words.empty() || words[0] == "--help") {
        std::fputs(kHelp, words.empty() ? stderr : stdout);
        return words.empty() ? 2 : 0;
    }
    try {
        return dispatch(words[0], moebius::bench::Options({words.begin() + 1, words.end()}));
    } catch (const moebius::Error& error) {
        std::fprintf(stderr, "moebius_bench: %s\n", error.what());
        return 1;
    }
}
