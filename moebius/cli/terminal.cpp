#include "moebius/cli/terminal.h"

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "moebius/base/log.h"

namespace moebius::cli {
namespace {

std::atomic<bool> stop_flag{false};
std::atomic<bool> closed{false};
std::atomic<int> failure{0};
static_assert(std::atomic<bool>::is_always_lock_free, "set in a signal handler");

void on_signal(int signal) {
    if (stop_flag.exchange(true)) _exit(128 + signal);
    constexpr char kText[] = "\nstopping after this step (again: at once)\n";
    [[maybe_unused]] const auto written = write(STDERR_FILENO, kText, sizeof kText - 1);
}

}  // namespace

void print_raw(const std::string& text) {
    if (closed.load()) return;
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
        failure.store(errno);
        closed.store(true);
        stop_flag.store(true);
    }
}

std::string output_failure() {
    return std::strerror(failure.load());
}

bool output_reader_left() {
    return failure.load() == EPIPE;
}

void print(const std::string& line) {
    print_raw(line + "\n");
}

bool output_closed() {
    return closed.load();
}

bool output_is_terminal() {
    return isatty(STDOUT_FILENO) == 1;
}

int output_columns() {
    winsize size{};
    constexpr int kUsual = 80;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

void keep_standard_streams() {
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        if (fcntl(stream, F_GETFD) != -1 || errno != EBADF) continue;
        // The lowest free number is this one. Against its direction: reading or writing it is an error.
        [[maybe_unused]] const int fd = open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    }
}

void print_error(const std::string& text) {
    std::fprintf(stderr, "%s\n", text.c_str());
}

const std::atomic<bool>& install_signals() {
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
    // A terminal that is closed; under nohup it stays ignored.
    struct sigaction before {};
    if (sigaction(SIGHUP, nullptr, &before) == 0 && before.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &action, nullptr);
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN);
    set_log_sink([](LogLevel level, std::string_view line) {
        if (level == LogLevel::Debug) return;
        const char* prefix = level == LogLevel::Warning ? "warning: "
                             : level == LogLevel::Error ? "error: "
                                                        : "";
        std::fprintf(stderr, "%s%.*s\n", prefix, static_cast<int>(line.size()), line.data());
    });
    return stop_flag;
}

std::vector<std::filesystem::path> shipped_config_dirs() {
    std::error_code error;
    std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
    // A root folder without /proc: the path that this program was started by.
    if (program.empty()) {
        if (const auto* path = reinterpret_cast<const char*>(getauxval(AT_EXECFN)))
            program = std::filesystem::absolute(path, error);
    }
    std::vector<std::filesystem::path> dirs;
    // A build folder lies inside the source tree, at build/<preset>/bin or build/bin.
    std::filesystem::path up = program.parent_path();
    for (int level = 0; level < 4 && up.has_relative_path(); ++level, up = up.parent_path()) {
        for (const auto& candidate : {up / "configs", up / "share" / "moebius" / "configs"}) {
            if (std::filesystem::is_directory(candidate / "models", error)) dirs.push_back(candidate);
        }
    }
    return dirs;
}

}  // namespace moebius::cli
