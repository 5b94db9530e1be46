// An allocation that may move: where it lies, who shows its address to others, and what may still use its places.
//
//   host ──► (queued) ──► arriving ──► device ──► leaving ──► host
#pragma once

#include <cstdint>

#include "memory/fence.h"
#include "memory/movable_memory.h"
#include "umadvise.h"

namespace um {

enum class Where : uint8_t {
  host,      // it lies there; its contents may still be on their way
  queued,    // likewise, and it comes as soon as there is room
  arriving,  // it lies on the device, and a copy to there runs
  device,
  leaving  // on the device as well, and the host has all of it, or will when a copy has ended: its memory can be had
};

struct Movable {
  // By an op.
  struct Use {
    Movable* block;
    bool write;
  };

  bool may_leave() const {
    return (where == Where::device || where == Where::arriving) && pins == 0 && owner != nullptr && !in_reach;
  }

  // Checks the invariants that hold between calls (base/assert.h).
  bool check() const;

  Block* block = nullptr;
  Residence residence;
  Movable* older = nullptr;  // UseOrder's
  Movable* newer = nullptr;
  Movable* next_free = nullptr;  // StablePool's
  void* owner = nullptr;    // shows the address to others; nullptr: nobody has said that he does, so it stays there
  Fences::Fence moved = 0;  // the copy that runs, or ran last; of a departure without one: the last use before
  uint64_t streams = 0;     // that used it since it came (UsedStreams)
  Fences::Fence used = 0;   // where one stream alone did: the end of the last op; 0: nobody took it down
  uint64_t ordered = 0;     // ahead of time, when so many ops had begun, and not used since; 0: it is not so
  uint64_t part_bytes = 0;  // what it takes of a chunk that it shares; 0: it shares none
  uint32_t pins = 0;        // while there are any, it stays
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

}  // namespace um
