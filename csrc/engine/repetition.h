// Finds where the steps of a loop begin that nobody marks: at a place that comes again and again, with a stretch of ops
// after it that uses the same lasting storages each time.
//
// A place is the call of a module by nobody else's forward, or an op outside of modules and of backward, told by its
// operator and by the oldest storage that it is given. An op that writes to that storage is what a training comes down
// to: where a step has several forwards and backwards (accumulated gradients, two networks), it comes once. What is
// found need not be where a person would put the edge; it is the same in each step.
//
// An op is a poor edge where modules are called: what the caller holds lies in the middle of something. Then the step
// begins at the next of these calls.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/participant.h"
#include "engine/use_log.h"

namespace um {

class Repetition final : public Participant {
 public:
  explicit Repetition(um_device& device) : Participant(device, kRepetitionTurns) {}

  // Takes part from now on, knowing nothing yet, or no longer. Throws std::bad_alloc.
  void set(bool on);
  // A module with parameters is called from outside of modules. Whether a step begins with it.
  bool call(uint64_t module, bool differentiated);

  // Throws um::Error with UM_STEP_BEGINS where a step begins with it: it is to begin again when that has been told.
  void begin_op(RunningOp& op) override;

 private:
  enum class Kind : uint8_t { call, use, write, after_backward };
  enum class Watch : uint8_t { everything, better, nothing };
  struct Place {
    uint64_t key;
    Kind kind;
    bool differentiated;  // autograd takes note of what happens there
  };
  // Where a place came: how much of everything there had been.
  struct Moment {
    uint64_t position, last_serial, live_bytes;
    uint32_t work, backwards, edges, calls;
  };
  struct Seen {
    uint64_t key = 0;
    uint32_t count = 0, next = 0;  // times that it came, and when two stretches are compared next
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
  uint64_t oldest(bool* written) const;
  uint32_t work() const;
  bool comes(const Place& place);
  bool begins_at(Edge& edge);
  void begin_step();
  Edge* look(const Place& place);
  bool repeats(const Place& place, Seen& seen, const LastTwo& last, const Moment& now);
  bool is_wanted(const Place& place, const LastTwo& last, const Moment& now) const;
  std::vector<uint64_t> older_than(const Moment& moment) const;
  Moment now() const;

  UseLog log_;
  std::vector<Seen> seen_;      // by key, as far as one does not take another's place
  std::vector<LastTwo> times_;  // that each of these came; apart, as most never come again and keys stay in the cache
  std::vector<Edge> edges_;
  Watch watch_ = Watch::nothing;
  uint64_t position_ = 0;    // ops until now
  uint64_t compared_ = 0;    // ops that were looked at to compare stretches
  uint64_t last_begin_ = 0;  // position at which a step began last
  uint64_t longest_ = 0;     // step in ops
  uint32_t backwards_ = 0, begun_ = 0, calls_ = 0;
  uint32_t settled_ = 0;  // steps until nobody looks for better edges any more
  bool in_backward_ = false;
  bool due_ = false;   // a step begins with the next call
  uint32_t work_ = 0;  // of the ops that were looked at; only differences count
};

}  // namespace um
