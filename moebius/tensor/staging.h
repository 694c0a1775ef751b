// How the host's loops and files reach a view wherever it lies: in place where it is host memory, else piece
// by piece through a buffer of bounded size.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>

#include "moebius/runtime/exec.h"
#include "moebius/runtime/transfer.h"
#include "moebius/tensor/view.h"

namespace moebius {

// Not thread-safe; used on the thread that drives the device. What it copies is ordered on exec.stream.
class HostStaging {
  public:
    // Views are host memory.
    HostStaging() = default;
    // Views lie in the memory of exec.device. `piece_bytes` > 0: through a buffer of that size even on the
    // CPU.
    explicit HostStaging(const Exec& exec, int64_t piece_bytes = 0);

    // f(piece, begin) for elements [begin, begin + piece.numel()) of the contiguous `view`, in order; `piece`
    // (n) is host memory that holds them during the call.
    template <class F>
    void read(const View& view, F&& f) const {
        each_piece(view, [&](const View& there, const View& here, int64_t begin) {
            if (here.data != there.data) fetch(there, here);
            f(here, begin);
        });
    }
    // The same, for an f that sets all of the piece.
    template <class F>
    void write(const View& view, F&& f) const {
        each_piece(view, [&](const View& there, const View& here, int64_t begin) {
            f(here, begin);
            if (here.data != there.data) store(here, there);
        });
    }

    // The same for fp32 values held as bf16 and 16-bit halves (base/split_float.h): `piece` holds them
    // joined. f(piece, begin) gets, or sets, all of an f32 piece in host memory.
    using Floats = std::function<void(const View& piece, int64_t begin)>;
    void read_joined(const View& rounded, const View& remainder, const Floats& f) const;
    void write_split(const View& rounded, const View& remainder, const Floats& f) const;

  private:
    template <class F>
    void each_piece(const View& view, F&& f) const {
        const int64_t count = view.numel();
        const View flat = view.reshaped({count});
        if (count == 0 || exec_.dry) return;
        if (piece_bytes_ == 0) return f(flat, flat, int64_t{0});
        const int64_t step = std::max<int64_t>(1, piece_bytes_ / bytes_of(view.dtype, 1));
        for (int64_t begin = 0; begin < count; begin += step) {
            const int64_t now = std::min(step, count - begin);
            f(flat.rows(begin, now), View(buffer(), view.dtype, {now}), begin);
        }
    }
    void* buffer() const;
    void fetch(const View& device, const View& host) const;  // returns when the bytes are there
    void store(const View& host, const View& device) const;  // returns when `host` may be used again

    Exec exec_;
    int64_t piece_bytes_ = 0;  // 0: in place
    mutable std::unique_ptr<std::byte[]> buffer_;
};

}  // namespace moebius
