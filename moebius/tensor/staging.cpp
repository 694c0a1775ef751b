#include "moebius/tensor/staging.h"

#include <vector>

#include "moebius/base/split_float.h"

namespace moebius {
namespace {

constexpr int64_t kPieceBytes = int64_t{16} << 20;
constexpr int64_t kWidest = 8;                 // bytes of an element
constexpr int64_t kJoined = int64_t{1} << 20;  // elements of a piece of joined values

// A piece of joined values and of their halves.
struct JoinedPiece {
    std::vector<float> values;
    std::vector<BF16> rounded;
    std::vector<int16_t> remainder;

    explicit JoinedPiece(int64_t count)
        : values(static_cast<size_t>(count)),
          rounded(static_cast<size_t>(count)),
          remainder(static_cast<size_t>(count)) {}
    View view(int64_t count) { return View(values.data(), DType::F32, {count}); }
    void join(int64_t count) {
        for (size_t i = 0; i < static_cast<size_t>(count); ++i)
            values[i] = join_float({rounded[i], remainder[i]});
    }
    void split(int64_t count) {
        for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
            const SplitFloat parts = split_float(values[i]);
            rounded[i] = parts.rounded;
            remainder[i] = parts.remainder;
        }
    }
};

void check_halves(const View& rounded, const View& remainder) {
    MOEBIUS_CHECK(rounded.dtype == DType::BF16 && remainder.dtype == DType::I16 && rounded.contiguous() &&
                      remainder.contiguous() && rounded.numel() == remainder.numel(),
                  name(rounded.dtype), " ", rounded.shape.str(), " and ", name(remainder.dtype), " ",
                  remainder.shape.str());
}

// f(first, count) over pieces of the halves.
template <class F>
void in_joined_pieces(int64_t total, F&& f) {
    for (int64_t first = 0; first < total; first += kJoined) f(first, std::min(kJoined, total - first));
}

template <class T>
void copy_piece(const T* from, T* to, int64_t count) {
    std::copy_n(from, count, to);
}

}  // namespace

void HostStaging::read_joined(const View& rounded, const View& remainder, const Floats& f) const {
    check_halves(rounded, remainder);
    if (exec_.dry) return;
    const int64_t total = rounded.numel();
    const View high = rounded.reshaped({total}), low = remainder.reshaped({total});
    JoinedPiece piece(std::min(kJoined, total));
    in_joined_pieces(total, [&](int64_t first, int64_t count) {
        read(high.rows(first, count), [&](const View& part, int64_t at) {
            copy_piece(part.as<BF16>(), piece.rounded.data() + at, part.numel());
        });
        read(low.rows(first, count), [&](const View& part, int64_t at) {
            copy_piece(part.as<int16_t>(), piece.remainder.data() + at, part.numel());
        });
        piece.join(count);
        f(piece.view(count), first);
    });
}

void HostStaging::write_split(const View& rounded, const View& remainder, const Floats& f) const {
    check_halves(rounded, remainder);
    if (exec_.dry) return;
    const int64_t total = rounded.numel();
    const View high = rounded.reshaped({total}), low = remainder.reshaped({total});
    JoinedPiece piece(std::min(kJoined, total));
    in_joined_pieces(total, [&](int64_t first, int64_t count) {
        f(piece.view(count), first);
        piece.split(count);
        write(high.rows(first, count), [&](const View& part, int64_t at) {
            copy_piece(piece.rounded.data() + at, part.as<BF16>(), part.numel());
        });
        write(low.rows(first, count), [&](const View& part, int64_t at) {
            copy_piece(piece.remainder.data() + at, part.as<int16_t>(), part.numel());
        });
    });
}

HostStaging::HostStaging(const Exec& exec, int64_t piece_bytes) : exec_(exec) {
    const bool in_place = exec.device->kind() == DeviceKind::Cpu;
    piece_bytes_ = piece_bytes > 0 ? piece_bytes : in_place ? 0 : kPieceBytes;
}

void* HostStaging::buffer() const {
    if (!buffer_) {
        const int64_t bytes = std::max(piece_bytes_, kWidest);
        buffer_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes));
    }
    return buffer_.get();
}

void HostStaging::fetch(const View& device, const View& host) const {
    copy_to_host(host.data, device.data, static_cast<size_t>(host.bytes()), exec_);
    synchronize(exec_);
}

void HostStaging::store(const View& host, const View& device) const {
    copy_to_device(device.data, host.data, static_cast<size_t>(host.bytes()), exec_);
    synchronize(exec_);
}

}  // namespace moebius
