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
        copies_.over = products_.over = false;
        copier_ = std::thread([this, seed] { work(copies_, seed, true); });
        multiplier_ = std::thread([this] { work(products_, 0, false); });
    }
    // What is still queued then has been forgotten by the kernel. Returns how much that is.
    size_t stop() {
        size_t left = 0;
        for (Queue* queue : {&copies_, &products_}) {
            const std::lock_guard lock(queue->mutex);
            left += queue->works.size();
            queue->over = true;
            queue->changed.notify_all();
        }
        copier_.join();
        multiplier_.join();
        return left;
    }

    void copy(Work work) { push(copies_, std::move(work)); }
    void multiply(Work work) { push(products_, std::move(work)); }

    // By one thread, before the block meets.
    void init(uint32_t barrier, uint32_t arrivals) {
        Barrier& b = barriers_[barrier];
        b.arrivals = b.pending = arrivals;
    }
    void arrive(uint32_t barrier, uint32_t expected_bytes) { change(barrier, 1, expected_bytes); }
    void complete(uint32_t barrier, uint32_t bytes) { change(barrier, 0, -static_cast<int64_t>(bytes)); }
    void wait(uint32_t barrier, uint32_t parity) {
        Barrier& b = barriers_.at(barrier);
        {
            std::unique_lock lock(b.mutex);
            const auto passed = [&] { return (b.phase & 1) != parity; };
            if (!b.changed.wait_for(lock, std::chrono::seconds(60), passed)) {
                std::fprintf(stderr, "a thread waits for ever at the barrier %u, parity %u\n", barrier,
                             parity);
                std::abort();
            }
        }
        linger();
    }

  private:
    // Each has a mutex of its own, so that nothing is ordered but by what the kernel waits for: a thread
    // sanitizer then sees what is not.
    struct Barrier {
        std::mutex mutex;
        std::condition_variable changed;
        uint32_t arrivals = 0, pending = 0, phase = 0;
        int64_t bytes = 0;
    };
    struct Queue {
        std::mutex mutex;
        std::condition_variable changed;
        std::vector<Work> works;
        bool over = false;
    };

    // Any thread may be late, now and then: others must not count on it.
    static void linger() {
        thread_local std::minstd_rand random(
            static_cast<unsigned>(std::hash<std::thread::id>()(std::this_thread::get_id())));
        if (random() % 64 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(random() % 32));
    }

    static void push(Queue& queue, Work work) {
        const std::lock_guard lock(queue.mutex);
        queue.works.push_back(std::move(work));
        queue.changed.notify_all();
    }
    void change(uint32_t barrier, uint32_t arrivals, int64_t bytes) {
        Barrier& b = barriers_.at(barrier);
        const std::lock_guard lock(b.mutex);
        if (arrivals > b.pending) {
            std::fprintf(stderr, "more arrivals at the barrier %u than it was made for\n", barrier);
            std::abort();
        }
        b.pending -= arrivals;
        b.bytes += bytes;
        if (b.pending == 0 && b.bytes == 0) {
            ++b.phase;
            b.pending = b.arrivals;
            b.changed.notify_all();
        }
    }
    static void work(Queue& queue, unsigned seed, bool any_order) {
        std::minstd_rand random(seed + 1);
        for (;;) {
            Work next;
            {
                std::unique_lock lock(queue.mutex);
                queue.changed.wait(lock, [&] { return queue.over || !queue.works.empty(); });
                if (queue.works.empty()) return;
                const size_t at = any_order ? random() % queue.works.size() : 0;
                next = std::move(queue.works[at]);
                queue.works.erase(queue.works.begin() + static_cast<std::ptrdiff_t>(at));
            }
            next();
        }
    }

    std::map<uint32_t, Barrier> barriers_;
    Queue copies_, products_;
    std::thread copier_, multiplier_;
};

inline Engines& engines() {
    static Engines engines;
    return engines;
}

}  // namespace host_kernel
