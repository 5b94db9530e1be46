// The memory of a step that repeats: which range each stay of a storage takes, so that none is mapped any more. What
// stays there are is seen in a step, and what is laid out then is followed in the next ones. A stay is told by its
// storage and by how many the storage had before in the step; one of which nobody knows the storage, by its size. A
// stay that does not find its chunks free takes others in place of those that are in use, which should be in nobody's
// way: else one miss makes many. One that is not known takes what it took in the step before, if that is free, or what
// is mapped, and so do the first steps, from which a layout is made: then most are soon where they were, whatever a
// layout would be, for steps 1 % longer. Where mapping costs nothing the first steps take the chunks that were given
// back longest ago instead: so which chunks those are follows from the steps alone, as they soon are in the same order
// whatever was before, and so does all that comes of it. In which order a program lets go of several between two ops is
// no part of a step.
//
// Where a step fills the whole budget there are too few chunks for some stays, as each has its own for all of its time
// and the step is a circle. So what plans bring ahead of time leaves some chunks free from then on.
//
// Not thread-safe: the device's lock is held, and its context is current.
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

  // ChunkRanges::take and give. `storage`: its number in the steps; -1: it is not known.
  ChunkRange* take(uint64_t chunks, driver::CUstream first_user, int32_t storage) {
    return take_for(key_of(chunks, storage), chunks, first_user);
  }
  // Likewise one chunk for storages that share it, and come back to each other (memory/shared_chunks.h).
  ChunkRange* take_shared(driver::CUstream first_user, int64_t group) {
    return take_for(kShared - group, 1, first_user);
  }
  void give(ChunkRange* range, Fences::Fence last_use) noexcept;
  // Ranges that are in the way of the next stay of a storage.
  std::vector<const ChunkRange*> in_the_way(uint64_t chunks, int32_t storage) {
    return in_the_way_of(key_of(chunks, storage));
  }
  std::vector<const ChunkRange*> in_the_way_of_shared(int64_t group) { return in_the_way_of(kShared - group); }

  // A step begins that is to be like the one before. Where too many stays of that did not find their chunks, there is a
  // new layout: made of it and mapped if it was like the one before it, else as soon as two are alike. Throws
  // std::bad_alloc.
  void begin_step();
  // Steps like those do not come any more.
  void stop() noexcept;

  // ---- the device's work, as it is given ----
  void op(double duration);
  // An op that begins needs what lies there.
  void awaits(const ChunkRange* range) noexcept;
  void arrives(const ChunkRange* range, uint64_t bytes) noexcept;
  // Whoever wants the chunks may have them from now on, 0 bytes: without a copy; or it does not leave after all.
  void leaves(const ChunkRange* range, uint64_t bytes) noexcept;
  void stays(const ChunkRange* range) noexcept;

  bool follows() const { return follows_; }      // steps that are to be alike
  uint64_t spare() const { return spare_; }      // chunks that what comes ahead of time leaves free
  uint64_t layouts() const { return layouts_; }  // that were made since it stopped last
  // Steps like this one keep to the layout that there is, or no other one is tried for long.
  bool settled() const {
    return laid_out_ > 0 && (missed_ * kStepsToPayOff <= laid_out_ || next_try_ >= steps_ + kLong);
  }
  // What holds between calls (base/assert.h).
  bool check() const;
  uint64_t missed() const { return missed_; }  // chunks of stays of this step that took others than theirs

 private:
  struct Seen {
    int64_t key;        // key_of(), or kShared less the group
    ChunkRange* range;  // nullptr: it was given back
    bool open;          // it has not ended
    double arrived;     // when the copy to the device ends, or what was there before, by the device's clock
    Stay stay;
  };
  struct Step {
    uint64_t first = 1;  // number of its first stay
    double begin = 0;    // by the device's clock
    Moment length;
    uint64_t digest = 0;  // of its stays' begins and ends
    std::vector<Seen> stays;
  };
  struct Own {
    ChunkRange* range;   // nullptr: there are too few chunks
    double begin_clock;  // since its step began
    int64_t end_tick;    // since the first step of the circle began
    std::vector<Chunk*> chunks;
    std::vector<Chunk*> instead;  // what it took when some of them were in use
  };
  // Of a storage's stays, in the order in which they begin.
  struct Turns {
    std::vector<Own> stays;
    std::vector<std::vector<Chunk*>> last;  // what stays that nobody laid out took in the step before
    size_t next = 0;
  };
  // Steps of a circle, where one alone leaves some stays without chunks: a storage that is there at its edge has the
  // same ones before and after, and what is there for longer than a step meets itself.
  static constexpr int64_t kMostSteps = 2;
  // A new layout maps all of its chunks once; a step's misses map that much in so many steps, at most.
  static constexpr uint64_t kStepsToPayOff = 64;
  // A layout that so many steps in a row do not keep to is given up: it may be what makes each unlike the one before.
  static constexpr uint64_t kMostAstray = 4;

  // Steps; so many in a row without a layout map what they take, and more take what is mapped.
  static constexpr uint64_t kLong = 8;

  // So often more chunks are left free because there were too few for a layout: what is lacking then is little.
  static constexpr uint64_t kMostSparings = 2;

  // The storage; negative: the size of one that is not known.
  static int64_t key_of(uint64_t chunks, int32_t storage) {
    return storage >= 0 ? storage : -static_cast<int64_t>(chunks);
  }
  static constexpr int64_t kShared = std::numeric_limits<int64_t>::min() / 2;
  std::vector<const ChunkRange*> in_the_way_of(int64_t key);
  ChunkRange* take_for(int64_t key, uint64_t chunks, driver::CUstream first_user);
  ChunkRange* take(Turns* turns, uint64_t chunks, driver::CUstream first_user);
  ChunkRange* take_again(Turns* turns, size_t turn, uint64_t chunks, driver::CUstream first_user);
  std::vector<Chunk*> instead(const Own& own, uint64_t chunks) const;
  Seen* seen(const ChunkRange* range, Step** step = nullptr) noexcept;
  void end(const ChunkRange* range, double clock) noexcept;
  double copy(bool to_host, uint64_t bytes, double earliest) noexcept;
  void note(uint64_t number) noexcept { step_.digest = (step_.digest ^ number) * 0x100000001b3; }
  bool spare_more(const std::vector<Stay>& stays);
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
  int64_t steps_of_circle_ = 1, place_ = 0;   // of this step in it
  std::vector<std::vector<int64_t>> begins_;  // by chunk: of the stays that the layout gives it, since the circle began
  uint64_t released_ = 0;                     // ChunkRanges::released() when the layout was made
  uint64_t laid_out_ = 0, missed_ = 0, layouts_ = 0;
  uint64_t steps_ = 0, next_try_ = 0, astray_ = 0, unlaid_ = 0;
  uint64_t spare_ = 0, sparings_ = 0;
  // The device's clock: ops take as long as in the trace, and copies of a direction follow each other at the speed at
  // which those of a step would take twice as long as its ops. An op waits for what it needs, and whoever takes chunks
  // for whoever had them.
  double now_ = 0, ops_ = 0;
  struct Link {
    double until = 0, bytes = 0, pace = 0;
  } links_[2];  // to the device, to the host
};

}  // namespace um
