// A Tensor shares ownership of memory; the last handle releases it on the stream it was made on.
#pragma once

#include <functional>
#include <memory>

#include "moebius/runtime/exec.h"
#include "moebius/tensor/view.h"

namespace moebius {

class Tensor {
  public:
    Tensor() = default;

    // Uninitialised memory from exec.pool, row-major. `name` appears in the pool's report.
    static Tensor empty(const char* name, Shape shape, DType dtype, const Exec& exec);
    static Tensor zeros(const char* name, Shape shape, DType dtype, const Exec& exec);
    // Memory of someone else: `deleter` runs when the last handle goes.
    static Tensor adopt(const View& view, std::function<void()> deleter);

    explicit operator bool() const { return storage_ != nullptr; }
    const View& view() const { return view_; }
    operator const View&() const { return view_; }
    const Shape& shape() const { return view_.shape; }
    DType dtype() const { return view_.dtype; }
    // The same storage seen through another view of it.
    Tensor alias(const View& view) const;
    void reset() { *this = Tensor(); }

  private:
    std::shared_ptr<void> storage_;
    View view_;
};

// Bytes on the host ↔ a contiguous view in the memory of exec.device; when the host's side may be used again:
// runtime/transfer.h.
void copy_from_host(const View& destination, const void* source, const Exec& exec);
void copy_to_host(void* destination, const View& source, const Exec& exec);
void fill_zero(const View& view, const Exec& exec);

}  // namespace moebius
