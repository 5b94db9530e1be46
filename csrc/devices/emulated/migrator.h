// Doing what um::Model says to managed blocks: data first, then page tables. Needs the lock of the block table; all of
// it also runs inside the signal handler.
#pragma once

#include "devices/emulated/block_table.h"
#include "devices/emulated/delays.h"
#include "devices/emulated/link.h"
#include "um/model.h"
#include "um/plain_chunks.h"

namespace um::emulated {

class Migrator {
 public:
  // All are borrowed.
  Migrator(BlockTable& table, Link& link, Delays& delays)
      : model(kSpanBlocks, table.device_tier.slots()),
        plain(model, table.device_tier.slots()),
        blocks_(table),
        link_(link),
        delays_(delays) {}

  // What an outcome about `block` asks for. False when the kernel refused, or a tier is full.
  bool apply(const Outcome& outcome, uint32_t block);
  // Brings the page tables in line with the model, once the data is where it must be.
  bool update_mapping(uint32_t block);
  // Nothing shows the block any more.
  bool hide(uint32_t block);
  // When the charged link is done with the present work on a block: nobody uses the block before.
  int64_t finish(uint32_t block);

  // One chunk of the device for other use than a managed block. False, and nothing is taken, where there is none.
  bool take_chunk();
  void withhold_remnant();

  // How long blocks took to leave for others.
  int64_t room_ns() const { return room_ns_; }

  Model model;
  PlainChunks plain;

 private:
  bool perform(const Action& action);
  bool move(const Action& action);
  bool evict(const Outcome& outcome);

  BlockTable& blocks_;
  Link& link_;
  Delays& delays_;
  int64_t room_ns_ = 0;
};

}  // namespace um::emulated
