#include "tests/gpu/command_line.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "moebius/base/error.h"

namespace moebius::gpu_tests {
namespace {

double number_of(const char* name, const std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0') throw Error(std::string(name) + " " + text + ": not a number");
    return value;
}

}  // namespace

void CommandLine::flag(const char* name, bool& out) {
    options_.push_back({name, false, [&out](const std::string&) { out = true; }});
}

void CommandLine::text(const char* name, std::string& out) {
    options_.push_back({name, true, [&out](const std::string& value) { out = value; }});
}

void CommandLine::list(const char* name, std::vector<std::string>& out) {
    options_.push_back({name, true, [&out](const std::string& value) { out.push_back(value); }});
}

void CommandLine::number(const char* name, int& out, int least) {
    options_.push_back({name, true, [&out, name, least](const std::string& value) {
                            out = std::max(least, static_cast<int>(number_of(name, value)));
                        }});
}

void CommandLine::number(const char* name, double& out) {
    options_.push_back(
        {name, true, [&out, name](const std::string& value) { out = number_of(name, value); }});
}

void CommandLine::parse(int argc, char** argv) const {
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        const auto option = std::find_if(options_.begin(), options_.end(),
                                         [&](const Option& known) { return known.name == word; });
        if (option != options_.end()) {
            if (option->has_value && i + 1 >= argc) throw Error(word + " needs a value");
            option->take(option->has_value ? argv[++i] : "");
        } else if (word_ != nullptr && word_->empty() && !word.starts_with("--")) {
            *word_ = word;
        } else {
            throw Error(word + ": there is no such option\n" + help_);
        }
    }
}

int run_main(int argc, char** argv, const char* program, const char* help, const std::function<int()>& run) {
    if (argc == 2 && std::strcmp(argv[1], "--help") == 0) {
        std::fputs(help, stdout);
        return 0;
    }
    try {
        return run();
    } catch (const Error& error) {
        std::fprintf(stderr, "%s: %s\n", program, error.what());
        return 2;
    }
}

}  // namespace moebius::gpu_tests
