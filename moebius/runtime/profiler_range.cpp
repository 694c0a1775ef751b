#include "moebius/runtime/profiler_range.h"

#include "moebius/runtime/cuda_backend.h"

namespace moebius {

ProfilerRange::ProfilerRange(const char* name) {
    cuda_backend::push_range(name);
}

ProfilerRange::~ProfilerRange() {
    cuda_backend::pop_range();
}

}  // namespace moebius
