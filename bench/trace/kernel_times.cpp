// Times of everything that a CUDA program runs on a card: a library that the driver loads into it
// (CUDA_INJECTION64_PATH names it) and that writes, at the program's end, a line for each kernel, copy and
// fill to the file that MOEBIUS_KERNEL_TIMES names: start and end in nanoseconds, then the name. CUPTI is
// opened when needed, so that the library exists without it; CUPTI itself is NVIDIA's
// (https://docs.nvidia.com/cupti).
#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace {

constexpr size_t kBufferBytes = 8 << 20;

struct Event {
    uint64_t start, end;
    std::string name;
};

struct Trace {
    std::mutex mutex;
    std::vector<Event> events;
    const char* file = nullptr;
    size_t dropped = 0;
    decltype(&cuptiActivityGetNextRecord) next = nullptr;
    decltype(&cuptiActivityFlushAll) flush = nullptr;
    decltype(&cuptiActivityGetNumDroppedRecords) count_dropped = nullptr;
};

// Never destroyed: CUPTI's thread may still hand over a buffer.
Trace& trace() {
    static auto* const all = new Trace;
    return *all;
}

std::string demangled(const char* name) {
    int status = 0;
    const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status),
                                                      std::free);
    return status == 0 && text ? text.get() : name;
}

void keep(CUpti_Activity* record) {
    auto& events = trace().events;
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
        const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
        events.push_back({kernel->start, kernel->end, demangled(kernel->name)});
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
        events.push_back({copy->start, copy->end, "[copy]"});
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        const auto* fill = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
        events.push_back({fill->start, fill->end, "[fill]"});
    }
}

void CUPTIAPI buffer_wanted(uint8_t** buffer, size_t* bytes, size_t* most_records) {
    *buffer = static_cast<uint8_t*>(std::aligned_alloc(ACTIVITY_RECORD_ALIGNMENT, kBufferBytes));
    *bytes = *buffer ? kBufferBytes : 0;
    *most_records = 0;
}

void CUPTIAPI buffer_full(CUcontext context, uint32_t stream, uint8_t* buffer, size_t, size_t valid) {
    const std::lock_guard lock(trace().mutex);
    CUpti_Activity* record = nullptr;
    while (trace().next(buffer, valid, &record) == CUPTI_SUCCESS) keep(record);
    size_t dropped = 0;
    if (trace().count_dropped(context, stream, &dropped) == CUPTI_SUCCESS) trace().dropped += dropped;
    std::free(buffer);
}

void write() {
    trace().flush(1);
    const std::lock_guard lock(trace().mutex);
    auto& events = trace().events;
    std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) { return a.start < b.start; });
    std::FILE* const file = std::fopen(trace().file, "w");
    if (file == nullptr) {
        std::fprintf(stderr, "kernel times: cannot write MOEBIUS_KERNEL_TIMES=%s\n", trace().file);
        return;
    }
    for (const Event& event : events) {
        std::fprintf(file, "%llu %llu %s\n", static_cast<unsigned long long>(event.start),
                     static_cast<unsigned long long>(event.end), event.name.c_str());
    }
    std::fclose(file);
    if (trace().dropped > 0) std::fprintf(stderr, "kernel times: %zu events were lost\n", trace().dropped);
}

void* open_cupti() {
    for (const char* name : {"libcupti.so.13", "/usr/local/cuda/lib64/libcupti.so.13",
                             "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13"}) {
        if (void* library = dlopen(name, RTLD_NOW | RTLD_GLOBAL)) return library;
    }
    return nullptr;
}

template <class Function>
bool find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    return function != nullptr;
}

bool begin(void* library) {
    decltype(&cuptiActivityRegisterCallbacks) set_callbacks = nullptr;
    decltype(&cuptiActivityEnable) enable = nullptr;
    Trace& t = trace();
    if (!find(library, "cuptiActivityRegisterCallbacks", set_callbacks) ||
        !find(library, "cuptiActivityEnable", enable) ||
        !find(library, "cuptiActivityGetNextRecord", t.next) ||
        !find(library, "cuptiActivityFlushAll", t.flush) ||
        !find(library, "cuptiActivityGetNumDroppedRecords", t.count_dropped)) {
        return false;
    }
    if (set_callbacks(buffer_wanted, buffer_full) != CUPTI_SUCCESS) return false;
    for (const CUpti_ActivityKind kind :
         {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET}) {
        if (enable(kind) != CUPTI_SUCCESS) return false;
    }
    return true;
}

}  // namespace

// What the driver calls before the program's first CUDA call.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
    trace().file = std::getenv("MOEBIUS_KERNEL_TIMES");
    if (trace().file == nullptr) return 1;
    void* const library = open_cupti();
    if (library == nullptr || !begin(library)) {
        std::fprintf(stderr, "kernel times: CUPTI 13 is not usable: %s\n",
                     library ? "it refuses" : dlerror());
        return 1;
    }
    std::atexit(write);
    return 1;
}
