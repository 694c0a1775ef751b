// Options and main of the programs that run on a GPU, which are built with nothing but CUDA and fmt.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace moebius::gpu_tests {

// "--name value", "--flag" and bare words into variables of the caller's. An option may come again: lists
// grow, the rest keeps the last.
class CommandLine {
  public:
    explicit CommandLine(const char* help) : help_(help) {}
    void flag(const char* name, bool& out);
    void text(const char* name, std::string& out);
    void list(const char* name, std::vector<std::string>& out);
    void number(const char* name, int& out, int least);  // a smaller one counts as `least`
    void number(const char* name, double& out);
    void word(std::string& out) { word_ = &out; }  // the one that may stand without a name

    // Throws Error naming what is no option, no number, or lacks its value, with the help.
    void parse(int argc, char** argv) const;

  private:
    struct Option {
        std::string name;
        bool has_value;
        std::function<void(const std::string&)> take;
    };
    const char* help_;
    std::vector<Option> options_;
    std::string* word_ = nullptr;
};

// --help alone prints the help; an Error goes to standard error behind the program's name, with exit code 2.
int run_main(int argc, char** argv, const char* program, const char* help, const std::function<int()>& run);

}  // namespace moebius::gpu_tests
