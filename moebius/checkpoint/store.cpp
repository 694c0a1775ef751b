#include "moebius/checkpoint/store.h"

#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <exception>
#include <new>
#include <system_error>

#include "moebius/base/error.h"
#include "moebius/base/log.h"
#include "moebius/checkpoint/checkpoint_writer.h"
#include "moebius/checkpoint/ranges.h"

namespace moebius::checkpoint {

struct Store::InFlight {
    SaveRequest request;  // its views lie in copies_
    std::exception_ptr failure;
    std::atomic<bool> ended{false};
    std::thread thread;
};

Store::Store(StoreOptions options, FileSystem& files) : options_(std::move(options)), files_(&files) {
    if (options_.rank != 0) return;
    try {
        make_directories(files, options_.directory);
        const Path probe = options_.directory / (std::string("step_probe") + kPartialSuffix);
        if (files.kind(probe) != FileKind::Absent) files.remove_file(probe);
        write_text(files, probe, "moebius\n");
        files.remove_file(probe);
    } catch (const Error& error) {
        throw Error(fmt::format("checkpoint.ckpt_dir = {} can't be written to: {}",
                                options_.directory.string(), error.what()));
    }
}

Store::~Store() {
    try {
        wait();
    } catch (const std::exception& error) {
        log(LogLevel::Error, error.what());
    }
}

void Store::write_now(const SaveRequest& request) {
    CheckpointWriter writer(*files_, options_, request);
    const auto meet = [this] {
        if (options_.world > 1 && options_.barrier) options_.barrier();
    };
    try {
        writer.begin();
        meet();
        writer.write();
        meet();
        writer.publish();
        meet();
    } catch (const Error& error) {
        writer.abandon();
        throw Error(
            fmt::format("the checkpoint of step {} was not written: {} (checkpoint.ckpt_dir = {}; the "
                        "checkpoints before it are untouched)",
                        request.step, error.what(), options_.directory.string()));
    }
}

SaveRequest Store::copied(const SaveRequest& request) {
    SaveRequest copy = request;
    copy.staging = nullptr;
    copies_.resize(request.entries.size());
    int64_t total = 0;
    try {
        for (size_t i = 0; i < request.entries.size(); ++i) {
            const View& from = request.entries[i].view;
            MOEBIUS_CHECK(from.contiguous(), request.entries[i].slice.name);
            const DType stored = request.entries[i].stored_dtype();
            const int64_t bytes = bytes_of(stored, from.numel());
            total += bytes;
            if (copies_[i].bytes != bytes || !copies_[i].data) {
                copies_[i] = {};
                copies_[i] = {std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes)), bytes};
            }
            const View to(copies_[i].data.get(), stored, from.shape);
            const auto keep = [&](const View& piece, int64_t at) {
                std::memcpy(elements(to, at, piece.numel()).data, piece.data,
                            static_cast<size_t>(piece.bytes()));
            };
            if (const View& remainder = request.entries[i].remainder) {
                staging_of(request).read_joined(from, remainder, keep);
            } else {
                staging_of(request).read(from, keep);
            }
            copy.entries[i].view = to;
            copy.entries[i].remainder = View();
        }
    } catch (const std::bad_alloc&) {
        copies_.clear();
        throw Error(fmt::format(
            "no memory for the copy of {} bytes and more that checkpoint.async_save = true makes; "
            "set it to false",
            total));
    }
    return copy;
}

void Store::save(const SaveRequest& request) {
    wait();
    if (!options_.async) {
        write_now(request);
        last_saved_ = request.step;
        return;
    }
    auto next = std::make_unique<InFlight>();
    next->request = copied(request);
    const auto work = [this, flight = next.get()] {
        try {
            write_now(flight->request);
        } catch (...) {
            flight->failure = std::current_exception();
        }
        flight->ended.store(true, std::memory_order_release);
    };
    try {
        next->thread = std::thread(work);
    } catch (const std::system_error& error) {
        throw Error(
            fmt::format("no thread for checkpoint.async_save = true ({}); set it to false", error.what()));
    }
    in_flight_ = std::move(next);
}

void Store::save_final(const SaveRequest& request) {
    wait();
    if (last_saved_ == request.step) return;
    write_now(request);
    last_saved_ = request.step;
}

void Store::poll() {
    if (in_flight_ && in_flight_->ended.load(std::memory_order_acquire)) wait();
}

void Store::wait() {
    if (!in_flight_) return;
    const std::unique_ptr<InFlight> flight = std::move(in_flight_);
    flight->thread.join();
    if (flight->failure) std::rethrow_exception(flight->failure);
    last_saved_ = flight->request.step;
}

}  // namespace moebius::checkpoint
