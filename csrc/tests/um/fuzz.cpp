// Random operations on few blocks and fewer chunks, so that eviction never rests. After each one: um::Model equals the
// naive reference in everything that can be seen; and its actions, carried out on memory whose contents are version
// numbers, never lose a write, never show an old version through a mapping, and never need more chunks than there are.
#include <random>

#include "check.h"
#include "um/model.h"
#include "um_reference.h"
#include "um_text.h"

using namespace um;

namespace {

constexpr int64_t kIndeterminate = -1;

// What is stored where. Version 0 is zeros; each write makes a new version of the whole block.
class Memory {
 public:
  Memory(uint32_t blocks, uint32_t chunks) : device_(blocks), host_(blocks), newest_(blocks, 0), chunks_(chunks) {}

  void perform(const Outcome& outcome) {
    CHECK(outcome.count <= Outcome::kMostActions);
    for (int i = 0; i < outcome.count; ++i) perform(outcome.actions[i]);
  }

  void access(const Model& model, uint32_t block, Processor processor, bool write) {
    const Mapping mapping = model.mapping(block);
    const bool remote = mapping == Mapping::remote_read || mapping == Mapping::remote_write;
    if (processor == Processor::device) CHECK(mapping != Mapping::none);
    std::optional<int64_t>& place = processor == Processor::device && !remote ? device_[block] : host_[block];
    CHECK(place.has_value());
    if (newest_[block] != kIndeterminate) CHECK_EQ(*place, newest_[block]);
    if (!write) return;
    CHECK(!device_[block] || !host_[block]);
    if (processor == Processor::device) CHECK(mapping == Mapping::device_write || mapping == Mapping::remote_write);
    place = newest_[block] = ++versions_;
  }

  void discard(uint32_t block) { newest_[block] = kIndeterminate; }
  // The discard was revoked without a write: whatever lies there now is the contents, and there is one of it.
  void settle(uint32_t block) {
    if (newest_[block] != kIndeterminate) return;
    CHECK(device_[block].has_value() != host_[block].has_value());
    newest_[block] = device_[block] ? *device_[block] : *host_[block];
  }
  void release(uint32_t block) {
    device_[block].reset();
    host_[block].reset();
    newest_[block] = 0;
  }
  void set_plain(uint32_t plain) { plain_ = plain; }

  void check(const Model& model) const {
    for (uint32_t block = 0; block < newest_.size(); ++block) {
      CHECK_EQ(model.resident(block, Processor::device), device_[block].has_value());
      CHECK_EQ(model.resident(block, Processor::host), host_[block].has_value());
      check_mapping(model.mapping(block), block);
      if (newest_[block] == kIndeterminate) continue;
      if (device_[block]) CHECK_EQ(*device_[block], newest_[block]);
      if (host_[block]) CHECK_EQ(*host_[block], newest_[block]);
      if (!device_[block] && !host_[block]) CHECK_EQ(newest_[block], 0);  // nowhere: nothing was ever written
    }
    CHECK(chunks_in_use() <= chunks_);
  }

 private:
  void check_mapping(Mapping mapping, uint32_t block) const {
    const bool device = device_[block].has_value(), host = host_[block].has_value();
    switch (mapping) {
      case Mapping::none:
        return;
      case Mapping::device_read:
        CHECK(device);
        return;
      case Mapping::device_write:
        CHECK(device && !host && newest_[block] != kIndeterminate);
        return;
      case Mapping::remote_read:
        CHECK(host && !device);
        return;
      case Mapping::remote_write:
        CHECK(host && !device && newest_[block] != kIndeterminate);
        return;
    }
  }

  uint32_t chunks_in_use() const {
    uint32_t used = plain_;
    for (const auto& copy : device_) used += copy.has_value();
    return used;
  }

  static void fill(std::optional<int64_t>& to, const std::optional<int64_t>& from) {
    CHECK(!to.has_value() && from.has_value());
    to = from;
  }
  static void drop(std::optional<int64_t>& copy) {
    CHECK(copy.has_value());
    copy.reset();
  }

  void perform(const Action& action) {
    std::optional<int64_t>& device = device_[action.block];
    std::optional<int64_t>& host = host_[action.block];
    switch (action.what) {
      case Do::evict_copy:
        fill(host, device);
        drop(device);
        break;
      case Do::evict_drop:
        drop(device);
        break;
      case Do::zero_device:
        fill(device, 0);
        break;
      case Do::zero_host:
        fill(host, 0);
        break;
      case Do::copy_h2d:
        fill(device, host);
        break;
      case Do::copy_d2h:
        fill(host, device);
        break;
      case Do::drop_host:
        drop(host);
        break;
      case Do::drop_device:
        drop(device);
        break;
    }
    CHECK(chunks_in_use() <= chunks_);  // after every single action: evictions come first
  }

  std::vector<std::optional<int64_t>> device_, host_;
  std::vector<int64_t> newest_;
  uint32_t chunks_, plain_ = 0;
  int64_t versions_ = 0;
};

Mapping mapping(const reference::Page& page) {
  if (page.device_right == reference::kNothing) return Mapping::none;
  const bool write = page.device_right == reference::kWrite;
  if (page.on(Processor::device)) return write ? Mapping::device_write : Mapping::device_read;
  return write ? Mapping::remote_write : Mapping::remote_read;
}

void compare(const Model& model, const reference::Model& naive) {
  for (uint32_t block = 0; block < naive.pages.size(); ++block) {
    const reference::Page& page = naive.pages[block];
    CHECK_EQ(model.allocated(block), page.allocated);
    CHECK_EQ(model.chunks.pins(block), page.pins);
    CHECK_EQ(model.resident(block, Processor::device), page.on(Processor::device));
    CHECK_EQ(model.resident(block, Processor::host), page.on(Processor::host));
    CHECK_EQ(text(model.mapping(block)), text(mapping(page)));
  }
  CHECK_EQ(model.chunks.next_victim(), naive.victim());
  CHECK_EQ(model.chunks.free(), naive.free_chunks());
  CHECK_EQ(model.chunks.resident(), naive.resident());
  CHECK_EQ(model.chunks.pinned(), naive.pinned());
  const Counters& counters = model.counters();
  CHECK_EQ(counters.fault_groups, naive.fault_groups);
  CHECK_EQ(counters.host_fault_groups, naive.host_fault_groups);
  CHECK_EQ(counters.first_touches, naive.first_touches);
  CHECK_EQ(counters.evictions, naive.evictions);
  CHECK_EQ(counters.evictions_dropped, naive.evictions_dropped);
  CHECK_EQ(counters.collapses, naive.collapses);
  CHECK_EQ(counters.remote_maps, naive.remote_maps);
  for (int cause = 0; cause < kCauses; ++cause) {
    const auto bytes = [&](Processor to) {
      const auto found = naive.copied_to.find({to, static_cast<Cause>(cause)});
      return found == naive.copied_to.end() ? 0 : found->second;
    };
    CHECK_EQ(counters.bytes_h2d[cause], bytes(Processor::device));
    CHECK_EQ(counters.bytes_d2h[cause], bytes(Processor::host));
  }
}

void compare(const Outcome& outcome, const reference::Seen& seen) {
  CHECK_EQ(outcome.fault, seen.fault);
  CHECK_EQ(outcome.first_touch, seen.first_touch);
  CHECK_EQ(outcome.collapse, seen.collapse);
  CHECK_EQ(outcome.remote_map, seen.remote_map);
}

// One run: both models and the memory, driven by one sequence of random numbers.
class Run {
 public:
  Run(uint32_t seed, uint32_t blocks, uint32_t chunks)
      : random_(seed), blocks_(blocks), model_(blocks, chunks), naive_(blocks, chunks), memory_(blocks, chunks) {
    for (uint32_t block = 0; block < blocks; ++block) allocate(block);
  }

  void step() {
    const uint32_t block = below(blocks_), kind = below(100);
    if (kind < 48)
      access(block, Processor::device);
    else if (kind < 60)
      access(block, Processor::host);
    else if (kind < 72)
      prefetch(block);
    else if (kind < 85)
      advise(block);
    else if (kind < 90)
      discard(block);
    else if (kind < 92)
      pin(block);
    else if (kind < 96)
      unpin(block);
    else if (kind < 98)
      plain();
    else
      release(block);
    compare(model_, naive_);
    memory_.check(model_);
  }
  const Counters& counters() const { return model_.counters(); }

 private:
  uint32_t below(uint32_t limit) { return static_cast<uint32_t>(random_() % limit); }
  Processor processor() { return below(2) != 0 ? Processor::device : Processor::host; }

  void allocate(uint32_t block) {
    model_.allocate(block, 1);
    naive_.pages[block].allocated = true;
  }
  void access(uint32_t block, Processor who) {
    const bool write = below(2) != 0;
    const Outcome outcome = model_.access(block, who, write);
    compare(outcome, naive_.access(block, who, write));
    memory_.perform(outcome);
    memory_.access(model_, block, who, write);
    CHECK(!model_.access(block, who, write).fault);  // one service is enough
  }
  void prefetch(uint32_t block) {
    const Processor to = processor();
    const Outcome outcome = model_.prefetch(block, to);
    compare(outcome, naive_.prefetch(block, to));
    memory_.perform(outcome);
    if (!naive_.pages[block].discarded) memory_.settle(block);
  }
  void advise(uint32_t block) {
    const Advice advice = static_cast<Advice>(below(6));
    const Processor where = processor();
    const Outcome outcome = model_.advise(block, advice, where);
    compare(outcome, naive_.advise(block, advice, where));
    memory_.perform(outcome);
  }
  void discard(uint32_t block) {
    model_.discard(block);
    naive_.discard(block);
    memory_.discard(block);
  }
  void pin(uint32_t block) {
    model_.chunks.pin(block);
    naive_.pin(block);
  }
  void unpin(uint32_t block) {
    for (uint32_t other = 0; other < blocks_; ++other, block = (block + 1) % blocks_) {
      if (naive_.pages[block].pins == 0) continue;
      model_.chunks.unpin(block);
      naive_.unpin(block);
      return;
    }
  }
  void plain() {
    if (naive_.plain > 0 && below(3) != 0) {
      model_.chunks.give_plain();
      --naive_.plain;
    } else {
      Outcome outcome;
      const bool taken = model_.take_chunk(outcome);
      CHECK_EQ(taken, naive_.take_chunk());
      memory_.perform(outcome);
    }
    memory_.set_plain(naive_.plain);
  }
  void release(uint32_t block) {
    model_.release(block);
    naive_.pages[block] = reference::Page{};
    memory_.release(block);
    compare(model_, naive_);
    allocate(block);
  }

  std::mt19937 random_;
  uint32_t blocks_;
  Model model_;
  reference::Model naive_;
  Memory memory_;
};

Counters run(uint32_t seed, uint32_t blocks, uint32_t chunks, int steps) {
  Run one(seed, blocks, chunks);
  for (int step = 0; step < steps; ++step) {
    try {
      one.step();
    } catch (const check::Failure& failure) {
      throw check::Failure("seed " + std::to_string(seed) + ", " + std::to_string(blocks) + " blocks, " +
                           std::to_string(chunks) + " chunks, step " + std::to_string(step) + ": " + failure.what());
    }
  }
  return one.counters();
}

}  // namespace

TEST(few_blocks_fewer_chunks) {
  constexpr int kSeeds = 24, kSteps = 20000, kOften = kSeeds * kSteps / 100;
  int64_t evictions = 0, dropped = 0, collapses = 0, remote_maps = 0;
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    const Counters counters = run(seed, 3 + seed % 5, 1 + seed % 3, kSteps);
    evictions += counters.evictions;
    dropped += counters.evictions_dropped;
    collapses += counters.collapses;
    remote_maps += counters.remote_maps;
  }
  // The comparison is worth something only while all of this happens all the time.
  CHECK(evictions > kOften);
  CHECK(dropped > kOften);
  CHECK(collapses > kOften);
  CHECK(remote_maps > kOften);
}

TEST(one_block) {
  for (uint32_t seed = 1; seed <= 4; ++seed) run(seed, 1, 1, 5000);
}

TEST(no_chunk_at_all) {
  for (uint32_t seed = 1; seed <= 2; ++seed) run(seed, 4, 0, 5000);
}

TEST(everything_fits) {
  for (uint32_t seed = 1; seed <= 2; ++seed) run(seed, 5, 8, 5000);
}

TEST(many_blocks) {
  for (uint32_t seed = 1; seed <= 2; ++seed) run(seed, 40, 25, 10000);
}
