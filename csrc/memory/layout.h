// The device memory of a step that repeats: each stay of a storage gets an address range of its own, chosen ahead of
// time, so that steady steps map nothing.
//
// A stay is the interval from taking a range for a storage to giving it back. The layout records the stays of a step.
// When two steps in a row have the same stays, lay_out() (memory/chunk_layout.h) assigns chunks to them, and the
// following steps use this assignment. A stay is recognized by its key and its turn. The key is the storage's number,
// the size of an unknown storage, or the group of a shared chunk (memory/shared_chunks.h). The turn counts the earlier
// stays with the same key in the step.
//
// Invariants:
// - The bytes that an op sees never depend on the layout: if the chunks of a stay are in use, it takes others.
// - The layout depends on the steps alone, not on the order in which a program frees tensors between two ops. So
//   simulations predict it.
// - After ChunkRanges::released() has changed, the next take() forgets the layout, because its ranges may have ended.
//   Until then in_the_way() returns nothing.
// - The layout is also forgotten when a new one is tried, even if the attempt fails, when a new one was due kMostAstray
//   times in a row and the steps did not repeat, and by stop(). Ranges that are held then remain held, and steps are
//   still recorded; only stop() ends that.
//
// Example: storage 7 takes three chunks twice in a step: [tick 4, tick 9) and [tick 20, tick 31). Two steps repeat
// that. The new layout maps range A for turn 0 and range B for turn 1. In the next step the second take(3, stream, 7)
// returns B without a mapping call. If a chunk of B is in use then, the step takes B's free chunks and others in place
// of the rest, and missed() grows by one.
//
// A missed stay takes substitutes that other stays need last: otherwise one miss would cause many. A stay that is not
// in the layout takes the chunks of the step before if they are free, or any mapped range. Steps without a layout do
// the same, so chunks soon repeat. Where mapping is free, they take the chunks that were given back longest ago
// instead, which makes all that follows reproducible; after kMostOldest such steps they take mapped ranges too.
//
// If a step fills the whole budget, some stays lack chunks: each stay has its chunks for all of its time, and what a
// step ends with is what the next one begins with. spare() counts the chunks that were lacking, and no layout is made
// then. Swap-ins that a plan has requested (Mover::progress()), the prefetcher and shared chunks that open again keep
// that many chunks free; an op's own swap-ins and allocations do not. Only stop() sets spare() back to 0.
//
// Not thread-safe: callers hold the device's lock, and its context is current.
#pragma once

#include <cstdint>
#include <limits>
#include <unordered_map>
#include <vector>

#include "memory/chunk_layout.h"
#include "memory/chunk_ranges.h"

namespace um {

class Layout {
 public:
  explicit Layout(ChunkRanges& ranges) : ranges_(ranges) {}
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;

  // Take and give back a range as ChunkRanges::take and give do. `storage` is the storage's number in the steps; -1:
  // the storage is unknown.
  [[nodiscard]] ChunkRange* take(uint64_t chunks, driver::CUstream first_user, int32_t storage) {
    return take_for(key_of(chunks, storage), chunks, first_user);
  }
  // Takes a chunk that small storages of a group share.
  [[nodiscard]] ChunkRange* take_shared(driver::CUstream first_user, int64_t group) {
    return take_for(kShared - group, 1, first_user);
  }
  void give(ChunkRange* range, Fences::Fence last_use) noexcept;
  // Returns the ranges that hold chunks of the next stay of a storage.
  std::vector<const ChunkRange*> in_the_way(uint64_t chunks, int32_t storage) {
    return in_the_way_of(key_of(chunks, storage));
  }
  std::vector<const ChunkRange*> in_the_way_of_shared(int64_t group) { return in_the_way_of(kShared - group); }

  // Begins a step that is expected to repeat the last one. Makes a new layout if all of these hold:
  // - There is none, or the last step missed more than 1 of kStepsToPayOff of the chunks that it has for stays.
  // - The last step had the stays of the step before: the layout of a step that does not recur would only cost calls.
  // - The last layout is not new: after the n-th one the next is tried 2^n steps later at the earliest.
  // Throws std::bad_alloc.
  void begin_step();
  // Forgets the layout, because no step like the last ones is expected.
  void stop() noexcept;

  // ---- the device's work, as it is given ----
  void op(double duration);
  // The op that begins needs the storage in this range.
  void awaits(const ChunkRange* range) noexcept;
  // Begins a copy of so many bytes into the range.
  void arrives(const ChunkRange* range, uint64_t bytes) noexcept;
  // From now on the chunks may be handed on, after a copy of so many bytes to the host (0: no copy).
  // cancel_departure(): they may not, because the storage is needed after all.
  void leaves(const ChunkRange* range, uint64_t bytes) noexcept;
  void cancel_departure(const ChunkRange* range) noexcept;

  bool follows() const { return follows_; }      // the steps are expected to be alike
  uint64_t spare() const { return spare_; }      // chunks that layouts lacked
  uint64_t layouts() const { return layouts_; }  // how many were made since stop()
  // Returns whether steps like this one keep to the layout, or no other layout is tried soon.
  bool steady() const {
    return laid_out_ > 0 && (missed_ * kStepsToPayOff <= laid_out_ || next_try_ >= steps_ + kSoon);
  }
  // Checks the invariants that hold between calls (base/assert.h).
  bool check() const;
  // Returns how many chunks of this step's stays were in use, so that others were taken.
  uint64_t missed() const { return missed_; }

 private:
  struct Seen {
    int64_t key;        // see key_of() and kShared
    ChunkRange* range;  // nullptr: the range was given back
    bool open;          // the stay has not ended
    double arrived;     // on the device's clock: the end of the copy to the device, or of the chunks' last stay
    Stay stay;
  };
  struct Step {
    uint64_t first = 1;  // the number of its first stay
    double begin = 0;    // on the device's clock
    Moment length;
    uint64_t digest = 0;  // over the begins and ends of its stays
    std::vector<Seen> stays;
  };
  struct Own {
    ChunkRange* range;   // nullptr: there were too few chunks
    double begin_clock;  // since the step began
    int64_t end_tick;    // since the circle began
    std::vector<Chunk*> chunks;
    std::vector<Chunk*> instead;  // what the stay took when some of its chunks were in use
  };
  // The stays of one key, in the order in which they begin.
  struct Turns {
    std::vector<Own> stays;
    std::vector<std::vector<Chunk*>> last;  // by turn: the chunks that a stay without a layout took last
    size_t next = 0;
  };
  // The most steps in a circle. In a circle of one step some stays get no chunks: a storage that is resident when the
  // step begins must have the same chunks before and after, and a stay longer than a step would overlap itself.
  static constexpr int64_t kMostSteps = 2;
  // A new layout maps each of its chunks once. It pays off if that is less mapping than the misses of 64 steps.
  static constexpr uint64_t kStepsToPayOff = 64;
  // A layout that this many steps in a row do not keep to is forgotten: it may itself make each step differ from the
  // one before.
  static constexpr uint64_t kMostAstray = 4;

  // The most steps without a layout whose stays take the oldest chunks, where mapping is free.
  static constexpr uint64_t kMostOldest = 8;
  // A layout that is tried in fewer steps than this is tried soon.
  static constexpr uint64_t kSoon = 8;

  // How often spare() is raised. A layout lacks few chunks after that.
  static constexpr uint64_t kMostSpareRaises = 2;

  // Returns the storage, or minus the size of an unknown one.
  static int64_t key_of(uint64_t chunks, int32_t storage) {
    return storage >= 0 ? storage : -static_cast<int64_t>(chunks);
  }
  static constexpr int64_t kShared = std::numeric_limits<int64_t>::min() / 2;
  std::vector<const ChunkRange*> in_the_way_of(int64_t key);
  // Take a range for the stay with this key, or for this turn of it.
  ChunkRange* take_for(int64_t key, uint64_t chunks, driver::CUstream first_user);
  [[nodiscard]] ChunkRange* take(Turns* turns, uint64_t chunks, driver::CUstream first_user);
  ChunkRange* take_again(Turns* turns, size_t turn, uint64_t chunks, driver::CUstream first_user);
  std::vector<Chunk*> instead(const Own& own, uint64_t chunks) const;
  Seen* seen(const ChunkRange* range, Step** step = nullptr) noexcept;
  void end(const ChunkRange* range, double clock) noexcept;
  double copy(bool to_host, uint64_t bytes, double earliest) noexcept;
  void note(uint64_t number) noexcept { step_.digest = (step_.digest ^ number) * 0x100000001b3; }
  bool raise_spare(const std::vector<Stay>& stays);
  void make();
  std::vector<Stay> laid_out(int64_t steps, const std::vector<uint32_t>& numbers);
  std::vector<Stay> closed(int64_t longest, std::vector<uint32_t>* others);
  std::vector<uint32_t> order() const;
  void forget() noexcept;
  void check(const Step& step) const;

  ChunkRanges& ranges_;
  bool follows_ = false;
  Step step_, before_;
  std::unordered_map<int64_t, Turns> turns_[kMostSteps];
  int64_t steps_of_circle_ = 1, place_ = 0;   // of this step in the circle
  std::vector<std::vector<int64_t>> begins_;  // by chunk: the begins of its stays, since the circle began
  uint64_t released_ = 0;                     // ChunkRanges::released() when the layout was made
  uint64_t laid_out_ = 0;  // the chunks that the layout has for the stays of its circle; 0: there is no layout
  uint64_t missed_ = 0, layouts_ = 0;
  uint64_t steps_ = 0, next_try_ = 0, astray_ = 0, unlaid_ = 0;
  uint64_t spare_ = 0, spare_raises_ = 0;
  // A model of the device's clock. Ops take as long as in the trace. The copies of a direction run one after the other,
  // at the speed at which all copies of a step would take twice as long as its ops. An op waits for its operands, and a
  // stay for the last stay of its chunks.
  double now_ = 0, ops_ = 0;
  struct Link {
    double until = 0, bytes = 0, pace = 0;
  } links_[2];  // to the device, to the host
};

}  // namespace um
