// One checkpoint being written, in three phases; between them all ranks meet.
#pragma once

#include <vector>

#include "moebius/checkpoint/store.h"

namespace moebius::checkpoint {

class CheckpointWriter {
  public:
    // All three outlive the writer.
    CheckpointWriter(FileSystem& files, const StoreOptions& options, const SaveRequest& request);

    void begin();    // rank 0: removes leftovers, makes the folders, files with nothing but their headers
    void write();    // every rank: its own ranges and its own optimizer file
    void publish();  // rank 0: trainer.json, sync, rename, prune
    void abandon() noexcept;  // rank 0, after a failure: frees the space if it can

  private:
    bool leads() const { return options_.rank == 0; }
    std::vector<StateEntry> state_entries() const;
    std::vector<FileRecord> collect_records();
    void check_model_elements();
    void put_in_place();
    void prune();

    FileSystem& files_;
    const StoreOptions& options_;
    const SaveRequest& request_;
    Path final_, partial_;
    std::vector<FileRecord> records_;  // names relative to partial_
};

// What reaches the memory of the request's entries.
const HostStaging& staging_of(const SaveRequest& request);

// Removes what saves that were cut off have left under `directory`.
void remove_leftovers(FileSystem& files, const Path& directory);

}  // namespace moebius::checkpoint
