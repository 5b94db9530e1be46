// Finds where steps begin in a loop that marks none: at a place that recurs, with a sequence of ops after it that uses
// the same lasting storages each time.
//
// A place is the call of a module that is not within another module's forward. Or it is an op outside of modules and of
// backward, identified by its operator and its oldest operand. An op that writes to that operand is preferred, since a
// training step updates its parameters once, even if it has several forwards and backwards (accumulated gradients, two
// networks). The place found need not be where a person would mark the step, but it is the same in every step.
//
// If modules are called, an op is a poor edge, because its caller is in the middle of something. The step then begins
// at the next of these calls.
//
// Example: each iteration calls a network, runs backward, and then `sgd_(w1, g1)` as the first update. The network's
// call recurs first and is found as the edge. If there are two micro-batches per update, that call recurs twice per
// update, and the update replaces it as the edge. Steps then begin at the first call after an update.
#pragma once

#include <cstdint>
#include <vector>

#include "base/thread_safety.h"
#include "engine/participant.h"
#include "engine/use_log.h"

namespace um {

class Repetition final : public Participant {
 public:
  explicit Repetition(DeviceBase& base) : Participant(base, kRepetitionTurns) {}

  // Begins to take part with no knowledge, or ends that. Throws std::bad_alloc.
  void set(bool on) REQUIRES(device_lock);
  // Notes the call of a module with parameters from outside of modules. Returns whether a step begins with it.
  bool call(uint64_t module, bool differentiated) REQUIRES(device_lock);

  // Throws um::Error with UM_STEP_BEGINS if a step begins with this op. The caller then begins the step and the op
  // again.
  void begin_op(RunningOp& op) override REQUIRES(device_lock);

 private:
  enum class Kind : uint8_t { call, use, write, after_backward };
  enum class Watch : uint8_t { everything, better, nothing };
  struct Place {
    uint64_t key;
    Kind kind;
    bool differentiated;  // autograd records there
  };
  // The counters when a place was reached.
  struct Moment {
    uint64_t position, last_serial, live_bytes;
    uint32_t work, backwards, edges, calls;
  };
  struct Seen {
    uint64_t key = 0;
    uint32_t count = 0, next = 0;  // how often it was reached, and the count at which sequences are compared next
  };
  struct LastTwo {
    Moment first, second;
  };
  struct Edge {
    Place place;
    uint32_t calls;
  };

  void watch(Watch watch);
  void look_again();
  void note_backward(bool runs);
  uint64_t oldest(bool* written) const REQUIRES(device_lock);
  uint32_t work() const REQUIRES(device_lock);
  bool comes(const Place& place) REQUIRES(device_lock);
  bool begins_at(Edge& edge) REQUIRES(device_lock);
  void begin_step() REQUIRES(device_lock);
  Edge* look(const Place& place);
  bool repeats(const Place& place, Seen& seen, const LastTwo& last, const Moment& now);
  bool is_wanted(const Place& place, const LastTwo& last, const Moment& now) const;
  std::vector<uint64_t> older_than(const Moment& moment) const;
  Moment now() const;

  UseLog log_;
  std::vector<Seen> seen_;  // by slot of the key; another key may take a slot over
  // The last two moments of each slot. They lie apart from the keys, which then fit the cache: most places never recur.
  std::vector<LastTwo> times_;
  std::vector<Edge> edges_;
  Watch watch_ = Watch::nothing;
  uint64_t position_ = 0;    // ops until now
  uint64_t compared_ = 0;    // ops that were visited to compare sequences
  uint64_t last_begin_ = 0;  // position at which the last step began
  uint64_t longest_ = 0;     // in ops
  uint32_t backwards_ = 0, begun_ = 0, calls_ = 0;
  uint32_t search_end_ = 0;  // the number of steps at which the search for better edges ends
  bool in_backward_ = false;
  bool due_ = false;   // a step begins with the next call
  uint32_t work_ = 0;  // of the visited ops; only differences matter
};

}  // namespace um
