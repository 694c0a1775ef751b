// A named span in a profiler's time line (NVTX). Nothing without a profiler, and in builds without CUDA.
#pragma once

namespace moebius {

class ProfilerRange {
  public:
    explicit ProfilerRange(const char* name);
    ~ProfilerRange();
    ProfilerRange(const ProfilerRange&) = delete;
    ProfilerRange& operator=(const ProfilerRange&) = delete;
};

}  // namespace moebius
