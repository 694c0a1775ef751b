// Limits that a control group (a container, a batch system) sets to this process; version 2 alone.
#pragma once

#include <string>
#include <vector>

namespace moebius::train {

// Folders of the groups that hold the process, its own first, then those around it; `proc_text` is
// /proc/self/cgroup's.
std::vector<std::string> control_group_folders(const std::string& proc_text);
std::vector<std::string> control_group_folders();

// CPUs that cpu.max's text ("150000 100000": 1.5 of them) allows, rounded up; 0: no limit.
int cpus_allowed(const std::string& cpu_max);
// The least of the groups' limits; 0: none.
int control_group_cpus();

}  // namespace moebius::train
