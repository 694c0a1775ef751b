#include "moebius/base/log.h"

#include <mutex>
#include <utility>

namespace moebius {
namespace {

std::mutex& sink_mutex() {
    static std::mutex mutex;
    return mutex;
}

LogSink& sink() {
    static LogSink current;
    return current;
}

}  // namespace

void set_log_sink(LogSink replacement) {
    const std::lock_guard lock(sink_mutex());
    sink() = std::move(replacement);
}

void log(LogLevel level, std::string_view line) {
    const std::lock_guard lock(sink_mutex());
    if (sink()) sink()(level, line);
}

}  // namespace moebius
