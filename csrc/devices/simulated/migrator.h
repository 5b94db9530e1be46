// What moves between the tiers of a simulated device, and when, by a clock that is told of it.
#pragma once

#include <cstdint>
#include <deque>

#include "devices/simulated/block_table.h"
#include "devices/simulated/clock.h"
#include "um/model.h"
#include "um/plain_chunks.h"

namespace um::simulator {

class Migrator {
 public:
  // Throws std::bad_alloc. The table is borrowed.
  Migrator(BlockTable& table, uint32_t chunks) : model(kSpanBlocks, chunks), plain(model, chunks), blocks_(table) {}

  // `block` is what the outcome is about; Model::kNone: no block, only what has to leave. True: nothing fails here.
  bool migrate(const Outcome& outcome, uint32_t block);
  // The end of what one call migrates.
  void end_migration();
  // A fault group of the running op.
  void serve(const Outcome& outcome, uint32_t block);
  // A prefetch beside the ops brings something later than now.
  bool arriving() const { return last_ready_ns_ > clock->now_ns(); }

  // One chunk of the device for other use than a managed block. False where there is none.
  bool take_chunk();
  void withhold_remnant();

  Clock* clock = nullptr;  // nullptr: nobody asks for times
  Lane lane = Lane::ops;   // of prefetches from now on
  Model model;
  PlainChunks plain;

 private:
  int64_t chunk_ready_ns(const Outcome& outcome);
  bool first_mapping(uint32_t block);

  BlockTable& blocks_;
  int64_t last_ready_ns_ = 0;
  // Free chunks whose last contents are on their way to the host: when they will be there, ascending.
  std::deque<int64_t> leaving_ns_;
};

}  // namespace um::simulator
