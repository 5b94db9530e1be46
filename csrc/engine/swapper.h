// Where each large block of chunked memory is, and the copies between device and host that change it.
//
//   host ──► (queued) ──► arriving ──► device ──► leaving ──► host
//
// What an op uses is pinned on the device from before its kernel is launched until the op ends, planned or not; what
// its kernel still does after that is waited for by events of all streams that used the block. Copies run in two
// streams of their own, in the order in which they are asked for. Not thread-safe: the device's lock is held; the
// device's context is current wherever copies may start.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "engine/swap_events.h"
#include "memory/arena.h"
#include "memory/chunked_memory.h"
#include "memory/fence.h"
#include "memory/stable_pool.h"
#include "memory/statistics.h"
#include "umadvise.h"

namespace um {

enum class Place : uint8_t {
  host,      // no chunks: the host has the contents, if there are any
  queued,    // likewise, and it comes as soon as there is room
  arriving,  // a copy to the device runs
  device,
  leaving  // the chunks are free when the copy to the host, or what uses them last, has ended
};

// One block that may leave.
struct Swapped {
  Block* block = nullptr;
  Swapped* older = nullptr;  // of those that are arriving or on the device, in order of their last use
  Swapped* newer = nullptr;
  Swapped* next_free = nullptr;  // StablePool's
  HostRange* host = nullptr;
  Fences::Fence moved = 0;  // the copy that runs, or ran last; of a departure without one: the last use
  uint64_t streams = 0;     // that used it since it came: bits of Swapper::streams_
  uint32_t pins = 0;
  Place place = Place::host;
  um_swap_cause cause = UM_SWAP_PLANNED;  // of the move that `moved` is
  bool written = false;                   // it has contents
  bool host_valid = false;                // the host has them too, or alone
  bool copying_out = false;               // on the device, and a departure that was cancelled still reads it
  bool spare = false;                     // a plan says that nobody needs its contents: it leaves before any other
  bool exported = false;                  // its address has left torch: it may be written at any time
  bool on_show = false;                   // the host's memory is mapped at its addresses
  Access shown = Access::none;            // on the device, where stray accesses can be caught: what they may do
  bool in_reach = false;                  // of kernels that no op announces, until an op is given it: it stays
};

// How far ahead blocks are used.
class Forecast {
 public:
  virtual ~Forecast() = default;
  // In ops from now on; what is not known to be used again has the largest value.
  virtual int64_t next_use(const Block& block) const = 0;
};

class Swapper {
 public:
  struct Use {
    Swapped* block;
    bool write;
  };

  // Throws um::Error.
  Swapper(const Backend& backend, ChunkedMemory& memory, Fences& fences, SwapEvents& events, bool host_mapped);
  // Every block detached before.
  ~Swapper();
  Swapper(const Swapper&) = delete;
  Swapper& operator=(const Swapper&) = delete;

  // A new block has no contents and no chunks. Throws std::bad_alloc.
  void attach(Block* block);
  // Before the block is freed. Nothing is waited for.
  void detach(Block* block) noexcept;

  void pin(Swapped* block) { ++block->pins; }
  void unpin(Swapped* block) { --block->pins; }
  // True when pinned blocks are on the device and ready for what an op does: then it has been noted that it does.
  bool at_hand(const Use* uses, size_t count, driver::CUstream stream);
  // Brings pinned blocks onto the device and orders `stream` after that. Throws um::Error when they find no room, or
  // the host none for what must leave: then some of them may have come. Those before `first` are there already.
  void acquire(const Use* uses, size_t count, driver::CUstream stream, size_t first = 0);
  // Room for a pinned allocation of few bytes. False when nothing more will leave.
  bool make_room(uint64_t chunks);
  // From now on with this many bytes; what must leave for that has left when it returns. Throws um::Error.
  void set_budget(uint64_t bytes);

  // ---- what plans ask for; false: it is so already, or cannot be now ----
  bool swap_in(Swapped* block);
  bool swap_out(Swapped* block);
  bool wait(Swapped* block);
  // It leaves when room is needed for what a plan brings. With a copy: a plan may be wrong about a step.
  bool set_spare(Swapped* block);
  // Takes in what has ended, and begins what there is room for now. Throws um::Error.
  void progress() {
    if (busy()) advance();
  }
  // nullptr: what was used longest ago leaves first. Borrowed.
  void set_forecast(const Forecast* forecast) { forecast_ = forecast; }
  // Asked where nothing will leave any more: whether it has ended an export, so that more may.
  void set_export_ender(std::function<bool()> end_export) { end_export_ = std::move(end_export); }

  // ---- data in and out, by the host ----
  // False: it is on the device, where the driver copies (and it stays there while it is pinned).
  bool read(Swapped* block, uint64_t offset, void* to, uint64_t bytes);
  bool write(Swapped* block, uint64_t offset, const void* from, uint64_t bytes);

  // ---- accesses that no op announced, where they can be caught (the emulated device) ----
  // Makes one possible that the block's mapping did not allow. False: its contents are on the host, which is not
  // mapped. Throws um::Error.
  bool serve(Swapped* block, bool write);

  // This stream uses small blocks, whose chunk waits for all streams that are known. Throws um::Error.
  void follow(driver::CUstream stream) { static_cast<void>(bit_of(stream)); }
  // A block is used in this stream too, by whatever that is given until the block is freed or leaves; nullptr: one that
  // never leaves. Throws um::Error.
  void lend(driver::CUstream stream, Swapped* block);
  // The host waits until the block's contents are on the device, where it is pinned. Throws um::Error.
  void stand_by(Swapped* block);
  // After everything that ops were given until now.
  Fences::Fence everything() { return last_use(~uint64_t{0}, {}); }
  bool busy() const { return !leaving_.empty() || !queue_.empty(); }
  // Of live allocations: what their chunks take, the most at once. Whoever gives small ones out notes it here.
  void note_level();
  Level used;
  um_swap_counters counted{};  // the totals that are the swapper's

 private:
  static constexpr size_t kMostStreams = 64;

  void note_use(Swapped* block, uint64_t bit, bool write);
  void keep(Swapped* block) noexcept;
  void unlink(Swapped* block) noexcept;
  void link_newest(Swapped* block) noexcept;
  uint64_t bit_of(driver::CUstream stream);
  uint64_t bit(std::vector<driver::CUstream>::iterator stream) const {
    return uint64_t{1} << (stream - streams_.begin());
  }
  std::vector<driver::CUstream>::iterator idle_stream();
  Fences::Fence last_use(uint64_t streams, std::vector<driver::CUstream> others);
  void forget(Fences::Fence* fence) noexcept;
  template <class Copy>
  Fences::Fence begin_copy(driver::CUstream stream, Fences::Fence before, const Copy& copy);
  bool bring(Swapped* block, driver::CUstream stream);
  bool begin_arrival(Swapped* block, driver::CUstream stream);
  void await(const Use& use, driver::CUstream stream, uint64_t bit);
  void settle_arrival(Swapped* block);
  void show(Swapped* block, Access access);
  void reveal(Swapped* block);
  bool serve_on_host(Swapped* block);
  void leave(Swapped* block, um_swap_cause cause = UM_SWAP_PLANNED);
  void stay(Swapped* block);
  void end_departure(Swapped* block) noexcept;
  bool collect();
  void advance();
  bool evict_one();
  bool send_spare();
  uint64_t departing() const;
  uint64_t coming() const;
  bool wait_for_departure();
  bool wait_for_arrival();
  void show_on_host(Swapped* block) noexcept;
  Swapped* victim() const;
  bool may_leave(const Swapped& block) const;
  void take_host(Swapped* block, const driver::CUstream* user = nullptr);
  void drop_host(Swapped* block) noexcept;
  bool reclaim_host();
  void stall(const Swapped& block, driver::CUstream stream, int64_t* account, Wait name);
  void stand(const Swapped& block, int64_t* account, Wait name);
  void count_wait(const Swapped& block, int64_t start_ns, int64_t* account);
  [[noreturn]] void refuse(const Use* uses, size_t count) const;

  const Backend& backend_;
  ChunkedMemory& memory_;
  Fences& fences_;
  SwapEvents& events_;
  const bool host_mapped_;
  const bool catches_;  // accesses that no op announced
  const Forecast* forecast_ = nullptr;
  std::function<bool()> end_export_;
  driver::CUstream to_device_{}, to_host_{};
  std::vector<driver::CUstream> streams_;  // that ops run in; kGone: one that was destroyed
  uint64_t lent_ = 0;                      // bits of those that are given work which no op announces
  StablePool<Swapped> pool_;
  Swapped* oldest_ = nullptr;
  Swapped* newest_ = nullptr;
  uint64_t spares_ = 0;
  std::vector<Swapped*> leaving_;  // in the order in which they began to
  std::deque<Swapped*> queue_;     // to come, first the first
};

}  // namespace um
