#include "moebius/train/control_group.h"

#include <algorithm>
#include <climits>
#include <fstream>
#include <sstream>

namespace moebius::train {
namespace {

std::string text_of(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();  // a file that is not there gives nothing
    return text.str();
}

}  // namespace

std::vector<std::string> control_group_folders(const std::string& proc_text) {
    std::vector<std::string> folders;
    std::istringstream lines(proc_text);
    for (std::string line; std::getline(lines, line);) {
        if (!line.starts_with("0::/")) continue;
        std::string group = line.substr(3);
        while (!group.empty()) {
            if (group != "/") folders.push_back("/sys/fs/cgroup" + group);
            group.resize(group.rfind('/'));
        }
    }
    folders.emplace_back("/sys/fs/cgroup");
    return folders;
}

std::vector<std::string> control_group_folders() {
    return control_group_folders(text_of("/proc/self/cgroup"));
}

int cpus_allowed(const std::string& cpu_max) {
    std::istringstream words(cpu_max);
    int64_t quota = 0, period = 0;
    if (!(words >> quota >> period) || quota <= 0 || period <= 0) return 0;  // "max 100000"
    return static_cast<int>(std::min<int64_t>((quota - 1) / period + 1, INT_MAX));
}

int control_group_cpus() {
    int least = 0;
    for (const std::string& folder : control_group_folders()) {
        const int allowed = cpus_allowed(text_of(folder + "/cpu.max"));
        if (allowed > 0) least = least == 0 ? allowed : std::min(least, allowed);
    }
    return least;
}

}  // namespace moebius::train
