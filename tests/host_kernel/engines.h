// What works beside a block's threads, on its own time: copies by TMA, in any order; the tensor cores, in
// order; and the barriers that they report to.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

struct CUtensorMap;

namespace host_kernel {

class Engines {
  public:
    using Work = std::function<void()>;

    // Filled in by the test, from its model of the machine.
    unsigned char* shared = nullptr;
    std::function<void(uint32_t, const CUtensorMap&, int, int, int)> load_box;
    std::function<void(uint32_t, uint64_t)> copy_scales;
    std::function<void(uint32_t, uint64_t, uint64_t, uint32_t, uint32_t, uint32_t, bool)> product;
    std::function<uint32_t(uint32_t)> tensor_word;

    void start(unsigned seed) {
        barriers_.clear();
        over_ = false;
        copier_ = std::thread([this, seed] { work(copies_, seed, true); });
        multiplier_ = std::thread([this] { work(products_, 0, false); });
    }
    // What is still queued or waited for then has been forgotten by the kernel. Returns how much that is.
    size_t stop() {
        size_t left;
        {
            const std::lock_guard lock(mutex_);
            left = copies_.size() + products_.size();
            over_ = true;
        }
        changed_.notify_all();
        copier_.join();
        multiplier_.join();
        return left;
    }

    void copy(Work work) { queue(copies_, std::move(work)); }
    void multiply(Work work) { queue(products_, std::move(work)); }

    void init(uint32_t barrier, uint32_t arrivals) {
        const std::lock_guard lock(mutex_);
        barriers_[barrier] = {.arrivals = arrivals, .pending = arrivals};
    }
    void arrive(uint32_t barrier, uint32_t expected_bytes) { change(barrier, 1, expected_bytes); }
    void complete(uint32_t barrier, uint32_t bytes) { change(barrier, 0, -static_cast<int64_t>(bytes)); }
    void wait(uint32_t barrier, uint32_t parity) {
        std::unique_lock lock(mutex_);
        const Barrier& b = barriers_.at(barrier);
        const auto passed = [&] { return (b.phase & 1) != parity; };
        if (changed_.wait_for(lock, std::chrono::seconds(60), passed)) {
            lock.unlock();
            linger();
            return;
        }
        std::fprintf(stderr, "a thread waits for ever at the barrier %u, parity %u\n", barrier, parity);
        std::abort();
    }

  private:
    struct Barrier {
        uint32_t arrivals = 0, pending = 0, phase = 0;
        int64_t bytes = 0;
    };

    // Any thread may be late, now and then: others must not count on it.
    static void linger() {
        thread_local std::minstd_rand random(
            static_cast<unsigned>(std::hash<std::thread::id>()(std::this_thread::get_id())));
        if (random() % 64 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(random() % 32));
    }

    void queue(std::vector<Work>& works, Work work) {
        {
            const std::lock_guard lock(mutex_);
            works.push_back(std::move(work));
        }
        changed_.notify_all();
    }
    void change(uint32_t barrier, uint32_t arrivals, int64_t bytes) {
        bool passed = false;
        {
            const std::lock_guard lock(mutex_);
            Barrier& b = barriers_.at(barrier);
            if (arrivals > b.pending) {
                std::fprintf(stderr, "more arrivals at the barrier %u than it was made for\n", barrier);
                std::abort();
            }
            b.pending -= arrivals;
            b.bytes += bytes;
            if (b.pending == 0 && b.bytes == 0) {
                passed = true;
                ++b.phase;
                b.pending = b.arrivals;
            }
        }
        if (passed) changed_.notify_all();
    }
    void work(std::vector<Work>& works, unsigned seed, bool any_order) {
        std::minstd_rand random(seed + 1);
        for (;;) {
            Work next;
            {
                std::unique_lock lock(mutex_);
                changed_.wait(lock, [&] { return over_ || !works.empty(); });
                if (works.empty()) return;
                const size_t at = any_order ? random() % works.size() : 0;
                next = std::move(works[at]);
                works.erase(works.begin() + static_cast<std::ptrdiff_t>(at));
            }
            next();
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<uint32_t, Barrier> barriers_;
    std::vector<Work> copies_, products_;
    std::thread copier_, multiplier_;
    bool over_ = false;
};

inline Engines& engines() {
    static Engines engines;
    return engines;
}

}  // namespace host_kernel
