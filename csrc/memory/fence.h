// Points in the work of streams, as recycled events of one device: steady steps create no events.
//
// Example: record({s1, s2}) returns fence 5 with two events. After order(s3, 5) the work that s3 is given runs after
// all work that s1 and s2 had been given before record(). release(5) gives the events back for reuse.
//
// Invariants: a fence is valid while there is a reference to it. A fence is passed if all of its events are.
//
// Not thread-safe: callers hold the device's lock, and its context is current.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "memory/backend.h"
#include "umadvise_waits.h"

namespace um {

class Fences {
 public:
  using Fence = uint32_t;  // 0: nothing to wait for
  // Stands for all work that the device has been given until the wait: it never counts as passed, and a wait for it
  // waits for the whole device. It needs no reference.
  static constexpr Fence kWholeDevice = ~Fence{0};

  explicit Fences(const Backend& backend) : backend_(backend) {}
  // Requires that every fence has been released. Waits for nothing.
  ~Fences();
  Fences(const Fences&) = delete;
  Fences& operator=(const Fences&) = delete;

  // Returns a fence after all work that these streams have been given until now; the caller owns one reference. A
  // stream that was destroyed is added to `gone`: its work may still run, so the whole device is waited for. Throws
  // um::Error or std::bad_alloc.
  [[nodiscard]] Fence record(driver::CUstream const* streams, size_t count,
                             std::vector<driver::CUstream>* gone = nullptr);
  // Returns a fence that passes when both have; the caller owns one reference. Throws std::bad_alloc.
  [[nodiscard]] Fence join(Fence one, Fence other);
  // The next four functions wait, or find that no wait is needed. `name` is the wait's name in docs/waits.md, by which
  // tests leave it out.
  //
  // Returns whether the fence has passed. Throws um::Error if the driver fails.
  [[nodiscard]] bool passed(Fence fence, Wait name);
  // Returns false also if the driver fails.
  [[nodiscard]] bool surely_passed(Fence fence, Wait name) noexcept;
  // Waits on the host. Throws um::Error.
  void wait(Fence fence, Wait name);
  // Makes the stream's further work run after the fence. The legacy stream is never made to wait for itself. Any other
  // stream is, because it may be a new one with the handle of a destroyed one. Throws um::Error.
  void order(driver::CUstream stream, Fence fence, Wait name);
  // From now on `notify` is called each time before a stream is made to wait.
  void before_waits(std::function<void(driver::CUstream)> notify) { before_wait_ = std::move(notify); }
  void retain(Fence fence) noexcept;
  void release(Fence fence) noexcept;
  // Replaces a fence in `held`, which owns a reference, by `next`. The caller's reference to `next` moves there.
  void replace(Fence* held, Fence next = 0) noexcept {
    if (*held != 0) release(*held);
    *held = next;
  }

  uint64_t live() const { return entries_.size() - unused_.size(); }
  uint64_t events() const { return event_count_; }  // how many were ever created

 private:
  struct Entry {
    std::vector<driver::CUevent> events;  // events not yet known to have passed
    std::vector<Fence> joined;            // fences not yet known to have passed; each holds a reference
    bool legacy = false;                  // it has one event, of the legacy stream
    uint32_t references = 0;
    uint64_t ordered = 0;  // the number of the last order() that visited it
  };
  Fence prepared();
  driver::CUevent take_event();
  bool record_event(driver::CUevent event, driver::CUstream stream);
  driver::CUresult query(Fence fence) noexcept;
  void order_once(driver::CUstream stream, Fence fence);
  void recycle(Entry& entry) noexcept;
  static bool counted(Fence fence) { return fence != 0 && fence != kWholeDevice; }

  const Backend& backend_;
  std::vector<Entry> entries_;  // fence n has index n - 1
  std::vector<Fence> unused_;   // both vectors have capacity for all fences
  std::vector<driver::CUevent> idle_;
  uint64_t event_count_ = 0, orders_ = 0;
  std::function<void(driver::CUstream)> before_wait_ = [](driver::CUstream) {};
};

// Owns one reference to a fence, taken over from the caller.
class [[nodiscard]] HeldFence {
 public:
  HeldFence(Fences& fences, Fences::Fence fence) : fences_(fences), fence_(fence) {}
  ~HeldFence() { fences_.release(fence_); }
  HeldFence(const HeldFence&) = delete;
  HeldFence& operator=(const HeldFence&) = delete;
  operator Fences::Fence() const { return fence_; }

 private:
  Fences& fences_;
  const Fences::Fence fence_;
};

}  // namespace um
