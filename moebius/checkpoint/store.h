// Writes checkpoints: step_000500/ with model/ (a Hugging Face folder), optimizer/ (slices) and trainer.json.
// All of it is written under a temporary name, synced, and renamed when it is whole. The store knows ranges,
// names and bytes; no model, no tokenizer, no optimizer.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "moebius/checkpoint/checkpoint.h"
#include "moebius/tensor/state.h"

namespace moebius::checkpoint {

struct StoreOptions {
    Path directory;               // checkpoint.ckpt_dir; created if absent
    int64_t max_checkpoints = 0;  // checkpoint.max_checkpoints; 0 or less: all are kept
    bool async = false;           // checkpoint.async_save
    int64_t max_shard_bytes = 5'000'000'000;
    int rank = 0, world = 1;
    // Called between the phases of a save where there are several ranks; all ranks must reach it.
    std::function<void()> barrier;
};

struct SaveRequest {
    int64_t step = 0;
    // What this rank alone writes (one replica of each range), every kind. Float weights wider than
    // model_dtype go to optimizer/ too, so that nothing is lost.
    std::vector<StateEntry> entries;
    const HostStaging* staging = nullptr;  // reaches the entries' memory during the call; null: host memory
    std::vector<ExportPiece> pieces;       // the layout of the model folder
    DType model_dtype = DType::F32;
    std::map<std::string, std::string> model_files;  // name → text: config.json, tokenizer.json, …
    Metadata model_metadata;                         // of the model folder's weight files
    std::string trainer;                             // a JSON object
    std::string rank_text;                           // of this rank; comes back in Checkpoint::rank_texts
};

class Store {
  public:
    // Creates the directory and tries to write there, so that a read-only folder is an Error at the start of
    // a run, not at its first checkpoint.
    Store(StoreOptions options, FileSystem& files);
    ~Store();  // waits for a save in flight; a failure that nobody asked for goes to the log
    Store(const Store&) = delete;
    Store& operator=(const Store&) = delete;

    // Returns when the checkpoint is whole; with options.async, when everything is copied. One save at most
    // is in flight: a second waits for it. Throws Error for a failure, also that of the save before; the
    // checkpoints before stay.
    void save(const SaveRequest& request);
    // As save, not asynchronous; does nothing if that step was just saved.
    void save_final(const SaveRequest& request);
    // Throws the failure of a save that has ended in the background; returns at once.
    void poll();
    // Waits for the save in flight, then as poll.
    void wait();
    // The last step that is known to be whole on disk; −1 before the first.
    int64_t last_saved() const { return last_saved_; }

  private:
    struct InFlight;
    struct HostCopy {
        std::unique_ptr<std::byte[]> data;
        int64_t bytes = 0;
    };
    void write_now(const SaveRequest& request);
    SaveRequest copied(const SaveRequest& request);

    StoreOptions options_;
    FileSystem* files_;
    std::vector<HostCopy> copies_;  // kept from save to save
    std::unique_ptr<InFlight> in_flight_;
    int64_t last_saved_ = -1;
};

}  // namespace moebius::checkpoint
