#include "moebius/ops/case_buffers.h"

#include "moebius/runtime/transfer.h"

namespace moebius::ops {

double read(const void* data, DType dtype, int64_t index) {
    switch (dtype) {
        case DType::F64:
            return static_cast<const double*>(data)[index];
        case DType::F32:
            return static_cast<const float*>(data)[index];
        case DType::BF16:
            return to_float(static_cast<const BF16*>(data)[index]);
        case DType::I64:
            return static_cast<double>(static_cast<const int64_t*>(data)[index]);
        case DType::I32:
            return static_cast<const int32_t*>(data)[index];
        case DType::I16:
            return static_cast<const int16_t*>(data)[index];
        case DType::U8:
        case DType::F8E4M3:
        case DType::F8E5M2:
        case DType::F8E8M0:
            return static_cast<const uint8_t*>(data)[index];
        default:
            break;
    }
    MOEBIUS_CHECK(false, "cases have no ", name(dtype));
}

void write(void* data, DType dtype, int64_t index, double value) {
    switch (dtype) {
        case DType::F64:
            static_cast<double*>(data)[index] = value;
            return;
        case DType::F32:
            static_cast<float*>(data)[index] = static_cast<float>(value);
            return;
        case DType::BF16:
            static_cast<BF16*>(data)[index] = to_bf16(static_cast<float>(value));
            return;
        case DType::I64:
            static_cast<int64_t*>(data)[index] = static_cast<int64_t>(value);
            return;
        case DType::I32:
            static_cast<int32_t*>(data)[index] = static_cast<int32_t>(value);
            return;
        case DType::I16:
            static_cast<int16_t*>(data)[index] = static_cast<int16_t>(value);
            return;
        case DType::U8:
        case DType::F8E4M3:
        case DType::F8E5M2:
        case DType::F8E8M0:
            static_cast<uint8_t*>(data)[index] = static_cast<uint8_t>(value);
            return;
        default:
            break;
    }
    MOEBIUS_CHECK(false, "cases have no ", name(dtype));
}

double rounded(double value, DType dtype) {
    alignas(8) char word[8];
    write(word, dtype, 0, value);
    return read(word, dtype, 0);
}

namespace {

// f(begin, end) over pieces of [0, count), on the threads if there are some.
template <class F>
void in_pieces(int64_t count, ThreadPool* threads, F&& f) {
    constexpr int64_t kPiece = 1 << 16;
    if (threads == nullptr || count < 2 * kPiece) return f(int64_t{0}, count);
    threads->run((count + kPiece - 1) / kPiece,
                 [&](int64_t piece, int) { f(piece * kPiece, std::min(count, (piece + 1) * kPiece)); });
}

}  // namespace

Buffers make_buffers(const Case& c, ThreadPool* threads) {
    Buffers buffers;
    for (const TensorSpec& spec : c.tensors) {
        Buffer buffer(spec);
        if (spec.role != Role::Output) {
            const Philox random(kCaseSeed, c.op + "/" + c.name + "/" + spec.name);
            in_pieces(buffer.numel(), threads, [&](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) {
                    buffer.set(i,
                               spec.value ? spec.value(i, random) : random.normal(static_cast<uint64_t>(i)));
                }
            });
        }
        const auto [place, fresh] = buffers.all.emplace(spec.name, std::move(buffer));
        MOEBIUS_CHECK(fresh, c.op, "/", c.name, " has two tensors '", spec.name, "'");
        buffers.views.views[spec.name] = place->second.view();
    }
    return buffers;
}

Placed::Placed(Buffers& host, const Exec& exec, const CheckOptions& options)
    : exec_(exec), on_gpu_(exec.device->kind() == DeviceKind::Cuda) {
    const int64_t guard = options.bare ? 0 : kGuardBytes;
    std::pmr::memory_resource* const shared = options.shared;
    if (!on_gpu_) {
        views_ = host.views;
        return;
    }
    for (auto& [name, buffer] : host.all) {
        // With guards, an address that the tensor's alignment, 64, divides, and nothing larger.
        static_assert(kGuardBytes % (2 * kAlignment) == 0);
        const size_t skip = options.bare ? 0 : kAlignment;
        const size_t region_bytes = buffer.region_bytes() - static_cast<size_t>(2 * (kGuardBytes - guard));
        const size_t bytes = region_bytes + skip;
        std::shared_ptr<void> memory;
        if (shared) {
            memory = {shared->allocate(bytes), [=](void* data) { shared->deallocate(data, bytes); }};
        } else {
            memory = {exec.pool->allocate("case", bytes, exec.stream),
                      [pool = exec.pool, stream = exec.stream](void* data) { pool->release(data, stream); }};
        }
        uint8_t* const region = static_cast<uint8_t*>(memory.get()) + skip;
        View view = buffer.view();
        view.data = region + guard;
        views_.views[name] = view;
        const bool raw = options.bare && buffer.whole_output();
        regions_[name] = {std::move(memory), region, buffer.region() + kGuardBytes - guard, region_bytes,
                          raw};
    }
}

void Placed::to_device() {
    if (!on_gpu_) return;
    for (auto& [name, place] : regions_) {
        if (!place.raw) copy_to_device(place.region, place.host, place.bytes, exec_);
    }
    synchronize(exec_);
}

void Placed::to_host() {
    if (!on_gpu_) return;
    synchronize(exec_);
    for (auto& [name, place] : regions_) copy_to_host(place.host, place.region, place.bytes, exec_);
    synchronize(exec_);
}

}  // namespace moebius::ops
