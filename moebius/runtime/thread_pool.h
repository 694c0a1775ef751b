// The one thread pool of CPU loops. Work is cut into pieces by shapes alone, and pieces share nothing that is
// written, so that results do not depend on the number of threads or on who runs which piece.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace moebius {

class ThreadPool {
  public:
    // `threads` ≥ 1, the calling thread counted.
    explicit ThreadPool(int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const { return static_cast<int>(workers_.size()) + 1; }

    // Calls function(piece, thread) for piece = 0 … pieces−1, each once, in any order; thread in [0, size())
    // names the caller's scratch. Returns when all are done. The first exception is thrown again here. Not
    // reentrant.
    template <class F>
    void run(int64_t pieces, F&& function) {
        const auto call = [](void* f, int64_t piece, int thread) {
            (*static_cast<std::remove_reference_t<F>*>(f))(piece, thread);
        };
        run_erased(pieces, call, const_cast<void*>(static_cast<const void*>(&function)));
    }

  private:
    using Call = void (*)(void*, int64_t, int);
    void run_erased(int64_t pieces, Call call, void* function);
    void work(int thread);
    void stop();
    void take_pieces(int thread);

    std::vector<std::thread> workers_;
    std::mutex mutex_;
    std::condition_variable start_, done_;
    uint64_t generation_ = 0;
    int busy_ = 0;
    bool stop_ = false;
    Call call_ = nullptr;
    void* function_ = nullptr;
    int64_t pieces_ = 0;
    std::atomic<int64_t> next_{0};
    std::exception_ptr error_;
};

}  // namespace moebius
