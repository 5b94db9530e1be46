#include "devices/simulated/migrator.h"

#include <algorithm>

namespace um::simulator {

bool Migrator::first_mapping(uint32_t block) {
  if (block == Model::kNone || blocks_[block].mapped_once) return false;
  return blocks_[block].mapped_once = true;
}

// The next owner of a chunk waits for the copy that empties it; chunks that nobody has left come first
// (uvm/uvm_pmm_gpu.c: the free list, then what is unused, in order). 0 where no chunk is taken, or one that is evicted.
int64_t Migrator::chunk_ready_ns(const Outcome& outcome) {
  while (!leaving_ns_.empty() && leaving_ns_.front() <= clock->now_ns()) leaving_ns_.pop_front();
  bool taken = false;
  for (int i = 0; i < outcome.count; ++i) {
    const Do what = outcome.actions[i].what;
    if (what == Do::evict_copy || what == Do::evict_drop) return 0;
    taken |= what == Do::zero_device || what == Do::copy_h2d;
  }
  if (!taken || leaving_ns_.size() <= model.chunks.free()) return 0;
  const int64_t ready_ns = leaving_ns_.front();
  leaving_ns_.pop_front();
  return ready_ns;
}

bool Migrator::migrate(const Outcome& outcome, uint32_t block) {
  blocks_.follow(outcome);
  if (clock == nullptr) return true;
  const int64_t chunk_ns = chunk_ready_ns(outcome);
  const int64_t ready_ns = clock->migrate(outcome, outcome.count > 0 && first_mapping(block), lane, chunk_ns);
  if (lane == Lane::ops || block == Model::kNone) return true;
  for (int i = 0; i < outcome.count; ++i) {
    if (outcome.actions[i].what != Do::drop_device) continue;
    leaving_ns_.push_back(leaving_ns_.empty() ? ready_ns : std::max(ready_ns, leaving_ns_.back()));
  }
  blocks_[block].ready_ns = ready_ns;
  last_ready_ns_ = std::max(last_ready_ns_, ready_ns);
  return true;
}

void Migrator::end_migration() {
  if (clock != nullptr && lane == Lane::ops) clock->end_migration();
}

void Migrator::serve(const Outcome& outcome, uint32_t block) {
  blocks_.follow(outcome);
  if (clock == nullptr) return;
  const bool at_once = outcome.first_touch && blocks_[block].preferred_here;
  clock->serve(outcome, first_mapping(block), at_once, chunk_ready_ns(outcome));
}

bool Migrator::take_chunk() {
  bool done = true;
  return plain.take([this](const Outcome& outcome) { return migrate(outcome, Model::kNone); }, done);
}

void Migrator::withhold_remnant() {
  plain.withhold_remnant([this](const Outcome& outcome) { return migrate(outcome, Model::kNone); });
}

}  // namespace um::simulator
