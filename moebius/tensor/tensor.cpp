#include "moebius/tensor/tensor.h"

#include "moebius/runtime/transfer.h"

namespace moebius {

Tensor Tensor::empty(const char* name, Shape shape, DType dtype, const Exec& exec) {
    Pool* pool = exec.pool;
    const Stream stream = exec.stream;
    void* data = pool->allocate(name, static_cast<size_t>(bytes_of(dtype, shape.numel())), stream);
    Tensor tensor;
    tensor.storage_ = std::shared_ptr<void>(data, [pool, stream](void* p) { pool->release(p, stream); });
    tensor.view_ = View(data, dtype, shape);
    return tensor;
}

Tensor Tensor::zeros(const char* name, Shape shape, DType dtype, const Exec& exec) {
    Tensor tensor = empty(name, shape, dtype, exec);
    fill_zero(tensor, exec);
    return tensor;
}

Tensor Tensor::adopt(const View& view, std::function<void()> deleter) {
    Tensor tensor;
    tensor.storage_ = std::shared_ptr<void>(view.data, [deleter = std::move(deleter)](void*) { deleter(); });
    tensor.view_ = view;
    return tensor;
}

Tensor Tensor::alias(const View& view) const {
    Tensor other = *this;
    other.view_ = view;
    return other;
}

void copy_from_host(const View& destination, const void* source, const Exec& exec) {
    MOEBIUS_CHECK(destination.contiguous(), destination.shape.str());
    copy_to_device(destination.data, source, static_cast<size_t>(destination.bytes()), exec);
}

void copy_to_host(void* destination, const View& source, const Exec& exec) {
    MOEBIUS_CHECK(source.contiguous(), source.shape.str());
    copy_to_host(destination, source.data, static_cast<size_t>(source.bytes()), exec);
}

void fill_zero(const View& view, const Exec& exec) {
    MOEBIUS_CHECK(view.contiguous(), view.shape.str());
    zero(view.data, static_cast<size_t>(view.bytes()), exec);
}

}  // namespace moebius
