// The charged link: how long copies and the driver's work take on a named device, so that policies can be compared by
// the clock. The data moves at the host's speed; whoever asked for it waits until the device would have been done.
// Where the host is slower than the link, time is what it is. In virtual time nobody waits: the clock is moved.
//
// A piece of work (one fault, one block of a prefetch) goes on from step to step; each direction of the link is one
// queue that all work shares. Everything but time itself needs the device's lock; all of it is async-signal-safe.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "um/model.h"
#include "umadvise.h"

namespace um::emulated {

class VirtualTime;

class Link {
 public:
  enum Direction : uint8_t { h2d, d2h };

  void set(const um_link& link, const um_driver_costs& costs) {
    link_ = link;
    costs_ = costs;
    on_ = true;
  }
  // Time is virtual, from now on.
  void keep_time(VirtualTime* time) { time_ = time; }
  bool is_virtual() const { return time_ != nullptr; }
  int64_t now_ns() const;
  // Returns at once for 0. Never called with the device's lock held.
  void wait_until(int64_t moment_ns) const;
  bool on() const { return on_; }
  const um_driver_costs& costs() const { return costs_; }  // all zero without a link

  // Work that could begin at `start_ns`. A fault also waits until the one before it is served: batches are strictly
  // serial, their copies included (uvm/uvm_gpu_replayable_faults.c).
  void begin(int64_t start_ns) { at_ns_ = on_ ? start_ns : 0; }
  void begin_fault(int64_t start_ns);
  void end_fault() { fault_free_ns_ = at_ns_; }
  // The driver is busy for so long.
  void spend(int64_t duration_ns);
  // What um::Model asked for; `first` when the device never had this block.
  void charge(const Action& action, bool first);
  // In virtual time nobody waits for a block that leaves: what comes takes a place that is empty by then, of so many
  // that nobody has, or else waits for the first of those that leave.
  void take_place(uint64_t unused);
  void leave_place();
  void copy(Direction direction, uint64_t bytes) { copy(direction, bytes, link_.bytes_per_s[direction]); }
  // When the present work is over; 0 without a link.
  int64_t at_ns() const { return at_ns_; }
  // How far it is, with a link or without.
  int64_t moment_ns() const { return on_ ? at_ns_ : now_ns(); }

  const um_charged& charged() const { return charged_; }

 private:
  void copy(Direction direction, uint64_t bytes, double bytes_per_s);

  bool on_ = false;
  VirtualTime* time_ = nullptr;
  um_link link_{};
  um_driver_costs costs_{};
  um_charged charged_{};
  int64_t at_ns_ = 0;
  int64_t fault_free_ns_ = 0;
  int64_t free_ns_[2] = {};  // when each direction has done what it was given
  static constexpr uint64_t kMostLeaving = 4096;
  int64_t left_ns_[kMostLeaving] = {};  // a ring: when each of the places was left that nobody has taken since
  uint64_t first_leaving_ = 0, leaving_ = 0;
};

// Declared before the device's lock is taken, so that it is waited for after the lock is given back.
struct Moment {
  explicit Moment(const Link& its_link) : link(its_link) {}
  ~Moment() { link.wait_until(ns); }
  Moment(const Moment&) = delete;
  Moment& operator=(const Moment&) = delete;

  const Link& link;
  int64_t ns = 0;
};

}  // namespace um::emulated
