#include "moebius/comm/communicator.h"

namespace moebius {
namespace {

void check_dense(const View& view, std::string_view what) {
    MOEBIUS_CHECK(view.contiguous(), what, ": view of ", view.shape.str(), " is not dense");
    MOEBIUS_CHECK(view.data != nullptr || view.numel() == 0, what, ": view of ", view.shape.str(),
                  " without data");
}

void check_summable(const View& view, std::string_view what) {
    MOEBIUS_CHECK(view.dtype == DType::F32 || view.dtype == DType::F64 || view.dtype == DType::I32 ||
                      view.dtype == DType::I64,
                  what, ": no sums of ", name(view.dtype));
}

void check_pair(const View& send, const View& receive, std::string_view what) {
    check_dense(send, what);
    check_dense(receive, what);
    MOEBIUS_CHECK(send.dtype == receive.dtype, what, ": sends ", name(send.dtype), ", receives ",
                  name(receive.dtype));
}

bool overlap(const View& a, const View& b) {
    if (a.numel() == 0 || b.numel() == 0) return false;
    const auto* first = static_cast<const char*>(a.data);
    const auto* second = static_cast<const char*>(b.data);
    return first < second + b.bytes() && second < first + a.bytes();
}

// `part` is rank's part of `whole`, or lies elsewhere.
void check_in_place(const View& part, const View& whole, int rank, std::string_view what) {
    MOEBIUS_CHECK(!overlap(part, whole) || static_cast<const char*>(part.data) ==
                                               static_cast<const char*>(whole.data) + rank * part.bytes(),
                  what, ": send and receive overlap, not at rank ", rank, "'s part");
}

int64_t check_rows(const View& view, std::span<const int64_t> rows, int ranks, std::string_view what) {
    MOEBIUS_CHECK(view.rank() >= 1, what, ": a scalar has no rows");
    MOEBIUS_CHECK(static_cast<int>(rows.size()) == ranks, what, ": ", rows.size(), " row counts for ", ranks,
                  " ranks");
    int64_t total = 0;
    for (const int64_t count : rows) {
        MOEBIUS_CHECK(count >= 0, what, ": ", count, " rows");
        total = checked_add(total, count);
    }
    MOEBIUS_CHECK(total <= view.size(0), what, ": ", total, " rows in ", view.shape.str());
    return total;
}

// Elements of one row.
int64_t row_size(const View& view) {
    int64_t elements = 1;
    for (int axis = 1; axis < view.rank(); ++axis) elements = checked_mul(elements, view.size(axis));
    return elements;
}

}  // namespace

void Communicator::all_reduce(const View& data, Stream stream, std::string_view what) {
    check_dense(data, what);
    check_summable(data, what);
    do_all_reduce(data, stream, what);
}

void Communicator::broadcast(const View& data, int root, Stream stream, std::string_view what) {
    check_dense(data, what);
    MOEBIUS_CHECK(root >= 0 && root < size(), what, ": root ", root, " of ", size(), " ranks");
    do_broadcast(data, root, stream, what);
}

void Communicator::all_gather(const View& send, const View& receive, Stream stream, std::string_view what) {
    check_pair(send, receive, what);
    MOEBIUS_CHECK(receive.numel() == checked_mul(send.numel(), size()), what, ": ", receive.numel(),
                  " elements from ", size(), " × ", send.numel());
    check_in_place(send, receive, rank(), what);
    do_all_gather(send, receive, stream, what);
}

void Communicator::reduce_scatter(const View& send, const View& receive, Stream stream,
                                  std::string_view what) {
    check_pair(send, receive, what);
    check_summable(send, what);
    MOEBIUS_CHECK(send.numel() == checked_mul(receive.numel(), size()), what, ": ", send.numel(),
                  " elements to ", size(), " × ", receive.numel());
    check_in_place(receive, send, rank(), what);
    do_reduce_scatter(send, receive, stream, what);
}

void Communicator::all_to_all(const View& send, const View& receive, Stream stream, std::string_view what) {
    check_pair(send, receive, what);
    MOEBIUS_CHECK(send.numel() == receive.numel() && send.numel() % size() == 0, what, ": sends ",
                  send.numel(), " elements, receives ", receive.numel(), ", in ", size(), " parts");
    MOEBIUS_CHECK(!overlap(send, receive), what, ": send and receive overlap");
    do_all_to_all(send, receive, stream, what);
}

void Communicator::all_to_all_v(const View& send, std::span<const int64_t> send_rows, const View& receive,
                                std::span<const int64_t> receive_rows, Stream stream, std::string_view what) {
    check_pair(send, receive, what);
    check_rows(send, send_rows, size(), what);
    check_rows(receive, receive_rows, size(), what);
    MOEBIUS_CHECK(row_size(send) == row_size(receive), what, ": rows of ", send.shape.str(), " and ",
                  receive.shape.str());
    const auto own = static_cast<size_t>(rank());
    MOEBIUS_CHECK(send_rows[own] == receive_rows[own], what, ": a rank sends itself ", send_rows[own],
                  " rows and receives ", receive_rows[own]);
    MOEBIUS_CHECK(!overlap(send, receive), what, ": send and receive overlap");
    do_all_to_all_v(send, send_rows, receive, receive_rows, stream, what);
}

void Communicator::barrier(Stream stream, std::string_view what) {
    do_barrier(stream, what);
}

}  // namespace moebius
