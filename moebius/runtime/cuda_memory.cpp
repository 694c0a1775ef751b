// A card's memory as one range of addresses that grows: reserved once, memory mapped behind what is there as
// it is asked for. The driver's functions for it are asked for by name, so that nothing links libcuda.
#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "moebius/base/error.h"
#include "moebius/runtime/cuda_backend.h"
#include "moebius/runtime/launch.h"

namespace moebius::cuda_backend {
namespace {

struct Driver {
    PFN_cuMemAddressReserve_v10020 address_reserve = nullptr;
    PFN_cuMemAddressFree_v10020 address_free = nullptr;
    PFN_cuMemGetAllocationGranularity_v10020 granularity = nullptr;
    PFN_cuMemCreate_v10020 create = nullptr;
    PFN_cuMemRelease_v10020 release = nullptr;
    PFN_cuMemMap_v10020 map = nullptr;
    PFN_cuMemUnmap_v10020 unmap = nullptr;
    PFN_cuMemSetAccess_v10020 set_access = nullptr;
    bool complete = false;
};

template <class Function>
bool find(const char* name, Function& function) {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion(name, &address, 10020, cudaEnableDefault, &result);
    if (error != cudaSuccess) (void)cudaGetLastError();
    function = reinterpret_cast<Function>(address);
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess && address != nullptr;
}

Driver find_driver() {
    Driver driver;
    driver.complete = find("cuMemAddressReserve", driver.address_reserve) &&
                      find("cuMemAddressFree", driver.address_free) &&
                      find("cuMemGetAllocationGranularity", driver.granularity) &&
                      find("cuMemCreate", driver.create) && find("cuMemRelease", driver.release) &&
                      find("cuMemMap", driver.map) && find("cuMemUnmap", driver.unmap) &&
                      find("cuMemSetAccess", driver.set_access);
    return driver;
}

constexpr size_t kLargeStep = size_t{32}
                              << 20;  // mapping takes about a millisecond: not for every small block

size_t rounded_up(size_t bytes, size_t step) {
    return (bytes + step - 1) / step * step;
}

class DeviceMemory : public SystemMemory {
  public:
    explicit DeviceMemory(int index) : index_(index), driver_(find_driver()) {
        property_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        property_.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = index};
        cudaEvent_t event = nullptr;
        cuda_check(cudaSetDevice(index), "make the GPU current");
        cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "create an event");
        event_ = event;
        reserve();
    }

    ~DeviceMemory() override {
        (void)cudaSetDevice(index_);
        (void)cudaDeviceSynchronize();
        (void)cudaEventDestroy(static_cast<cudaEvent_t>(event_));
        for (void* block : blocks_) (void)cudaFree(block);
        if (base_ == 0) return;
        for (const auto& [begin, bytes] : mapped_) driver_.unmap(begin, bytes);
        driver_.address_free(base_, reserved_);
    }

    std::string name() const override { return "GPU " + std::to_string(index_); }
    size_t alignment() const override { return kCudaAlignment; }

    Range take(size_t more, size_t whole) override {
        if (base_ == 0) return allocate(rounded_up(whole, kLargeStep), whole);
        for (const size_t step : {std::max(kLargeStep, granule_), granule_}) {
            const size_t bytes = rounded_up(more, step);
            if (bytes <= reserved_ - used_ && map(bytes)) {
                char* const begin = reinterpret_cast<char*>(base_) + used_;
                used_ += bytes;
                return {begin, bytes};
            }
        }
        return {};
    }

    void order(Stream first, Stream then) override {
        auto* const event = static_cast<cudaEvent_t>(event_);
        cuda_check(cudaEventRecord(event, static_cast<cudaStream_t>(first.handle)), "record an event");
        cuda_check(cudaStreamWaitEvent(static_cast<cudaStream_t>(then.handle), event, 0),
                   "wait for an event");
    }

  private:
    // Addresses for twice the card's memory. Without them (a virtual card that can't), plain allocations.
    void reserve() {
        size_t free = 0, total = 0;
        cuda_check(cudaMemGetInfo(&free, &total), "memory of the GPU");
        if (!driver_.complete) return;
        if (driver_.granularity(&granule_, &property_, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS)
            return;
        reserved_ = rounded_up(2 * total, std::max(kLargeStep, granule_));
        if (driver_.address_reserve(&base_, reserved_, 0, 0, 0) != CUDA_SUCCESS) base_ = 0;
    }

    bool map(size_t bytes) {
        CUmemGenericAllocationHandle handle{};
        if (driver_.create(&handle, bytes, &property_, 0) != CUDA_SUCCESS) return false;
        const CUdeviceptr begin = base_ + used_;
        CUmemAccessDesc access{};
        access.location = property_.location;
        access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        const bool mapped = driver_.map(begin, bytes, 0, handle, 0) == CUDA_SUCCESS;
        const bool usable = mapped && driver_.set_access(begin, bytes, &access, 1) == CUDA_SUCCESS;
        driver_.release(handle);  // the mapping keeps the memory
        if (usable) {
            mapped_.push_back({begin, bytes});
        } else if (mapped) {
            driver_.unmap(begin, bytes);
        }
        return usable;
    }

    Range allocate(size_t wanted, size_t least) {
        for (const size_t bytes : {wanted, least}) {
            void* data = nullptr;
            if (cudaMalloc(&data, bytes) == cudaSuccess) {
                blocks_.push_back(data);
                return {static_cast<char*>(data), bytes};
            }
            (void)cudaGetLastError();
        }
        return {};
    }

    int index_;
    Driver driver_;
    CUmemAllocationProp property_{};
    CUdeviceptr base_ = 0;  // 0: plain allocations
    size_t granule_ = 0, reserved_ = 0, used_ = 0;
    std::vector<std::pair<CUdeviceptr, size_t>> mapped_;
    std::vector<void*> blocks_;
    void* event_ = nullptr;
};

}  // namespace

std::unique_ptr<SystemMemory> device_memory(int index) {
    return std::make_unique<DeviceMemory>(index);
}

}  // namespace moebius::cuda_backend
