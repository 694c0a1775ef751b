// Standard output and error, signals, and where the program lies.
#pragma once

#include <atomic>
#include <filesystem>
#include <string>
#include <vector>

namespace moebius::cli {

// Prints a line to stdout. A reader that went away (EPIPE) is remembered, not fatal: see output_closed().
void print(const std::string& line);
void print_raw(const std::string& text);
bool output_closed();
std::string output_failure();  // the system's reason
bool output_reader_left();     // the reason is EPIPE, as with `| head`
bool output_is_terminal();
int output_columns();  // of the terminal, now; 80 where it does not say

// Opens what the caller closed of standard input, output and error, so that no file gets their numbers and
// with them what is printed; a use of theirs still fails.
void keep_standard_streams();
void print_error(const std::string& text);

// SIGINT, SIGTERM and SIGHUP set the flag once; a second one ends the process at once. SIGPIPE and SIGXFSZ
// are ignored: the write fails instead. The log's sink becomes stderr.
const std::atomic<bool>& install_signals();

// configs/ beside the source tree's build folder, or share/moebius/configs of an installation.
std::vector<std::filesystem::path> shipped_config_dirs();

}  // namespace moebius::cli
