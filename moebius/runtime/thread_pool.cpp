#include "moebius/runtime/thread_pool.h"

#include <string>
#include <system_error>

#include "moebius/base/check.h"
#include "moebius/base/error.h"

namespace moebius {

ThreadPool::ThreadPool(int threads) {
    MOEBIUS_CHECK(threads >= 1, "threads = ", threads);
    try {
        for (int thread = 1; thread < threads; ++thread) {
            workers_.emplace_back([this, thread] { work(thread); });
        }
    } catch (const std::system_error& error) {
        const size_t started = workers_.size() + 1;
        stop();  // those that wait would be waited for
        throw DeviceError("only " + std::to_string(started) + " of " + std::to_string(threads) +
                          " threads could be started (num_threads, --threads): " + error.what());
    }
}

ThreadPool::~ThreadPool() {
    stop();
}

void ThreadPool::stop() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    start_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_erased(int64_t pieces, Call call, void* function) {
    if (pieces <= 0) return;
    if (workers_.empty() || pieces == 1) {
        for (int64_t piece = 0; piece < pieces; ++piece) call(function, piece, 0);
        return;
    }
    {
        const std::lock_guard lock(mutex_);
        call_ = call;
        function_ = function;
        pieces_ = pieces;
        next_.store(0, std::memory_order_relaxed);
        error_ = nullptr;
        busy_ = static_cast<int>(workers_.size());
        ++generation_;
    }
    start_.notify_all();
    take_pieces(0);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
    if (error_) std::rethrow_exception(error_);
}

void ThreadPool::take_pieces(int thread) {
    for (;;) {
        const int64_t piece = next_.fetch_add(1, std::memory_order_relaxed);
        if (piece >= pieces_) return;
        try {
            call_(function_, piece, thread);
        } catch (...) {
            const std::lock_guard lock(mutex_);
            if (!error_) error_ = std::current_exception();
        }
    }
}

void ThreadPool::work(int thread) {
    uint64_t seen = 0;
    for (;;) {
        {
            std::unique_lock lock(mutex_);
            start_.wait(lock, [&] { return stop_ || generation_ != seen; });
            if (stop_) return;
            seen = generation_;
        }
        take_pieces(thread);
        const std::lock_guard lock(mutex_);
        if (--busy_ == 0) done_.notify_one();
    }
}

}  // namespace moebius
