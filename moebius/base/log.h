// The one piece of global state: where log lines go. The library never prints by itself; cli/ sets the sink.
#pragma once

#include <functional>
#include <string_view>

namespace moebius {

enum class LogLevel { Debug, Info, Warning, Error };

using LogSink = std::function<void(LogLevel, std::string_view)>;

// Replaces the sink; an empty one drops every line (the state at the start). Thread-safe.
void set_log_sink(LogSink sink);

// Hands one line, without a newline, to the sink. Thread-safe.
void log(LogLevel level, std::string_view line);

inline void log_info(std::string_view line) {
    log(LogLevel::Info, line);
}
inline void log_warning(std::string_view line) {
    log(LogLevel::Warning, line);
}

}  // namespace moebius
