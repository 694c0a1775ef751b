// Collectives between the ranks of a group. All ranks call the same collectives in the same order, with the
// same `what`: the words that an error names when a call fails or times out ("layer 3 dispatch").
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "moebius/runtime/device.h"
#include "moebius/tensor/view.h"

namespace moebius {

// Views are dense (row-major, no gaps). A collective is ordered on `stream`; with a backend that works on the
// host it is done when the call returns. Sums run in an order that the group's size alone fixes, and every
// rank gets the same bits. Mismatched arguments are a bug and abort; a peer that fails, a time-out, and any
// call after abort() throw CommError. Not thread-safe: the thread that drives the device calls.
class Communicator {
  public:
    virtual ~Communicator() = default;
    Communicator() = default;
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    virtual std::string_view backend() const = 0;
    virtual int rank() const = 0;
    virtual int size() const = 0;
    // Whether its calls can be recorded into a graph and replayed.
    virtual bool capturable() const = 0;

    // Element-wise sum over ranks, in place. f32, f64, i32, i64.
    void all_reduce(const View& data, Stream stream, std::string_view what);
    // Root's data to every rank, in place.
    void broadcast(const View& data, int root, Stream stream, std::string_view what);
    // receive = the ranks' `send` one after another; receive.numel() = size · send.numel(). `send` may be
    // this rank's part of `receive`.
    void all_gather(const View& send, const View& receive, Stream stream, std::string_view what);
    // receive = this rank's part of the sum of `send` over ranks; send.numel() = size · receive.numel().
    // `receive` may be this rank's part of `send`. f32, f64, i32, i64.
    void reduce_scatter(const View& send, const View& receive, Stream stream, std::string_view what);
    // Part r of `send` goes to rank r, part r of `receive` comes from rank r; all parts of one size.
    void all_to_all(const View& send, const View& receive, Stream stream, std::string_view what);
    // The same with send_rows[r] rows (of the outermost axis) to rank r and receive_rows[r] from it, one
    // after another. Rows past the sums are neither read nor written.
    void all_to_all_v(const View& send, std::span<const int64_t> send_rows, const View& receive,
                      std::span<const int64_t> receive_rows, Stream stream, std::string_view what);
    // Returns when every rank has called it.
    void barrier(Stream stream, std::string_view what);

    // Ranks with the same color form a new group, ordered by (key, old rank). Collective. A rank with color
    // < 0 belongs to none and gets null.
    virtual std::unique_ptr<Communicator> split(int color, int key, std::string_view what) = 0;

    // Gives the group up: peers that wait in a collective get a CommError, and so does every later call
    // here. May be called from any thread, more than once.
    virtual void abort() noexcept = 0;

  protected:
    // Called with arguments that the public functions have checked.
    virtual void do_all_reduce(const View& data, Stream stream, std::string_view what) = 0;
    virtual void do_broadcast(const View& data, int root, Stream stream, std::string_view what) = 0;
    virtual void do_all_gather(const View& send, const View& receive, Stream stream,
                               std::string_view what) = 0;
    virtual void do_reduce_scatter(const View& send, const View& receive, Stream stream,
                                   std::string_view what) = 0;
    virtual void do_all_to_all(const View& send, const View& receive, Stream stream,
                               std::string_view what) = 0;
    virtual void do_all_to_all_v(const View& send, std::span<const int64_t> send_rows, const View& receive,
                                 std::span<const int64_t> receive_rows, Stream stream,
                                 std::string_view what) = 0;
    virtual void do_barrier(Stream stream, std::string_view what) = 0;
};

}  // namespace moebius
