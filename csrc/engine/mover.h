// Where each allocation that may move is, and the copies between device and host that change it.
//
//   host ──► (queued) ──► arriving ──► device ──► leaving ──► host
//
// What an op uses is pinned on the device from before its kernel is launched until the op ends; what its kernel still
// does after that is waited for, in streams, by whoever gets the memory. Nobody makes the host wait: what leaves stays
// where it is, readable, until somebody takes its memory; only then does it lie on the host, and its owner is told.
// Not thread-safe: the device's lock is held; the device's context is current wherever copies may start.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "engine/stalls.h"
#include "engine/swap_events.h"
#include "engine/used_streams.h"
#include "memory/fence.h"
#include "memory/movable_memory.h"
#include "memory/stable_pool.h"
#include "umadvise.h"

namespace um {

enum class Where : uint8_t {
  host,      // it lies there; its contents may still be on their way
  queued,    // likewise, and it comes as soon as there is room
  arriving,  // it lies on the device, and a copy to there runs
  device,
  leaving  // on the device as well, and the host has all of it, or will when a copy has ended: its memory can be had
};

// An allocation that may move.
struct Movable {
  Block* block = nullptr;
  Movable* older = nullptr;  // of those that are arriving or on the device, in order of their last use
  Movable* newer = nullptr;
  Movable* next_free = nullptr;  // StablePool's
  Residence residence;
  void* owner = nullptr;    // shows the address to others; nullptr: nobody has said that he does, so it stays there
  Fences::Fence moved = 0;  // the copy that runs, or ran last; of a departure without one: the last use before
  uint64_t streams = 0;     // that used it since it came (UsedStreams)
  Fences::Fence used = 0;   // where one stream alone did: the end of the last op; 0: nobody took it down
  uint32_t pins = 0;
  Where where = Where::device;
  um_swap_cause cause = UM_SWAP_PLANNED;  // of the move that `moved` is
  bool written = false;                   // it has contents
  bool copied = false;                    // on the device, and the host has the same contents or will have
  bool copying_out = false;               // a copy to the host may run
  bool spare = false;                     // a plan says that nobody needs its contents: it leaves before any other
  bool in_reach = false;                  // of kernels that no op announces, until an op is given it: it stays
};

// Those who show allocations' addresses to others.
class Owners {
 public:
  virtual ~Owners() = default;
  // Whoever shows the address, if he can be told of another one; else nullptr.
  virtual void* remember(void* storage, uint64_t address) noexcept = 0;
  // The address is another one from now on. False: it is not shown there any more, and the allocation stays.
  virtual bool repoint(void* owner, uint64_t from, uint64_t to) noexcept = 0;
  // Nothing will be asked of him any more.
  virtual void forget(void* owner) noexcept = 0;
};

// How far ahead allocations are used.
class Outlook {
 public:
  virtual ~Outlook() = default;
  // In ops from now on; what is not known to be used again has the largest value.
  virtual int64_t next_use(const Block& block) const = 0;
  // How long the device will take for the op that begins; any number that is alike for all will do.
  virtual double op_duration() const { return 1; }
};

class Mover {
 public:
  struct Use {
    Movable* block;
    bool write;
  };

  // Throws um::Error.
  Mover(const Backend& backend, MovableMemory& memory, Fences& fences, SwapEvents& events, Owners& owners);
  // Every allocation freed before.
  ~Mover();
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  // An allocation on the device, pinned, whose memory `stream` may use at once. `storage`: what it will be called
  // (Record). `beside`: what the op that asks for it uses as well. Throws um::Error.
  Movable* make(uint64_t bytes, driver::CUstream stream, int32_t storage = -1, const std::vector<Use>& beside = {});
  // Likewise, of memory that nobody has and nobody has to leave for; nullptr: there is none.
  Movable* make_idle(uint64_t bytes, driver::CUstream stream, int32_t storage = -1);
  // An allocation on the host that comes when it is used first; what the stream is given from now on may use it there,
  // or, without one, the CPU, which waits. nullptr: the host has no room. Throws um::Error.
  Movable* make_out(uint64_t bytes, const driver::CUstream* user = nullptr);
  // Nothing is waited for.
  void free(Movable* block) noexcept;
  // Whoever shows its address, unless that is known: from now on it may leave.
  void meet(Movable* block, void* storage);

  void pin(Movable* block) { ++block->pins; }
  void unpin(Movable* block) { --block->pins; }
  // True when pinned allocations are on the device and ready for what an op does: then it has been noted that it does.
  bool at_hand(const Use* uses, size_t count, driver::CUstream stream);
  // An op ends that has used pinned allocations in this stream alone: whoever gets their memory need not wait for more.
  void end_use(const Use* uses, size_t count, driver::CUstream stream) noexcept;
  // Brings pinned allocations onto the device and orders `stream` after that; one whose owner nobody knows is used
  // where it lies. Throws um::Error when they find no room,
  // or the host none for what must leave: then some of them may have come.
  void acquire(const Use* uses, size_t count, driver::CUstream stream);
  // What kernels that no op announces may use can leave from now on, on the emulated device, whose kernels have ended.
  // Whether there was any.
  bool let_go_of_reach() noexcept;
  // False when nothing more will leave.
  bool make_room(uint64_t chunks);
  // From now on with this many chunks: what must leave for that has left when it returns. Throws um::Error.
  void set_budget(uint64_t chunks);

  // ---- what plans ask for; false: it is so already, or cannot be now ----
  bool swap_in(Movable* block);
  bool swap_out(Movable* block);
  // It leaves when room is needed for what a plan brings. With a copy: a plan may be wrong about a step.
  bool set_spare(Movable* block);
  // Begins what there is room for now. Throws um::Error.
  void progress();
  bool busy() const { return !queue_.empty(); }
  // nullptr: what was used longest ago leaves first. Borrowed.
  void set_outlook(const Outlook* outlook) { outlook_ = outlook; }
  // Asked where nothing will leave any more: whether it has ended something, so that there is more room or more may.
  void set_last_resort(std::function<bool()> last_resort) { last_resort_ = std::move(last_resort); }

  // ---- what somebody else than ops does ----
  // True where it lies on the host and the CPU may read, or write, all of it now; false: it is on the device. Throws
  // um::Error.
  bool on_host(Movable* block, bool write);
  // The host waits until all of a pinned allocation is on the device. Throws um::Error.
  void stand_by(Movable* block);
  // It is used in this stream too, by whatever that is given until it is freed or leaves. Throws um::Error.
  void lend(driver::CUstream stream, Movable* block);

  // ---- accesses that no op announced, where they can be caught (the emulated device) ----
  // Makes one possible that is not allowed where the allocation lies on the device. Throws um::Error.
  void serve(Movable* block, bool write);

  // A chunk holds small allocations from now on, or none.
  void note_arena(const Block& room, bool there) noexcept { events_.placed(room, there); }

  UsedStreams streams;
  um_swap_counters counted{};  // the totals that are the mover's; how long streams waited once `stalls` has settled
  Stalls stalls;

 private:
  void note_op();
  Fences::Fence freed_after(const Movable& block) noexcept;
  Movable* made_of(Block* block, const Residence& residence, uint64_t bytes);
  void note_use(Movable* block, uint64_t bit, bool write);
  void keep(Movable* block) noexcept;
  void unlink(Movable* block) noexcept;
  void link_newest(Movable* block) noexcept;
  void forget(Fences::Fence* fence) noexcept;
  template <class Copy>
  Fences::Fence begin_copy(driver::CUstream stream, Fences::Fence before, Wait name, const Copy& copy);
  bool bring(Movable* block, driver::CUstream stream);
  bool begin_arrival(Movable* block, driver::CUstream stream);
  void await(const Use& use, driver::CUstream stream, uint64_t bit);
  void await_on_host(Movable* block, driver::CUstream stream, uint64_t bit);
  void drop_copy(Movable* block) noexcept;
  void reveal(Movable* block);
  void stall(const Movable& block, driver::CUstream stream, Wait name);
  void stand(const Movable& block, int64_t* account, Wait name);
  void count_wait(const Movable& block, int64_t start_ns, int64_t* account);
  Fences::Fence last_use(const Movable& block, Wait of_arrival, Wait of_departure);
  void leave(Movable* block, um_swap_cause cause);
  void stay(Movable* block) noexcept;
  bool hand_on(Movable* block);
  void clear(uint64_t chunks, int32_t storage);
  bool ready(const Movable& block);
  bool send_spare();
  bool evict_one();
  Movable* victim() const;
  bool may_leave(const Movable& block) const;
  void take_copy(Movable* block);
  bool reclaim_copies() noexcept;
  uint64_t chunks_of(const Movable& block) const { return memory_.chunks_of(block.block->record.bytes); }
  void disown(Movable* block) noexcept;
  [[noreturn]] void refuse(const Use* uses, size_t count, uint64_t chunks = 0) const;

  const Backend& backend_;
  MovableMemory& memory_;
  Fences& fences_;
  SwapEvents& events_;
  Owners& owners_;
  const bool catches_;  // the CPU may use an allocation at any time, wherever it lies
  const Outlook* outlook_ = nullptr;
  std::function<bool()> last_resort_ = [] { return false; };
  driver::CUstream to_device_{}, to_host_{};
  StablePool<Movable> pool_;
  Movable* oldest_ = nullptr;
  Movable* newest_ = nullptr;
  uint64_t spares_ = 0;
  std::deque<Movable*> leaving_;  // in the order in which they began to
  std::deque<Movable*> queue_;    // to come, first the first
};

}  // namespace um
