// Moments in the work that streams were given, as events of one device that are recycled: none is created in the steady
// state. Not thread-safe: the device's lock is held, and its context is current.
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
  // Never passes: whoever waits for it waits for everything that the device has been given. Needs no reference.
  static constexpr Fence kWholeDevice = ~Fence{0};

  explicit Fences(const Backend& backend) : backend_(backend) {}
  // Every fence must have been released; nothing is waited for.
  ~Fences();
  Fences(const Fences&) = delete;
  Fences& operator=(const Fences&) = delete;

  // After everything that those streams have been given until now; the caller has one reference to it. A stream that is
  // gone is added to `gone`: what it was given may still run, so the whole device has been waited for. Throws um::Error
  // or std::bad_alloc.
  Fence record(driver::CUstream const* streams, size_t count, std::vector<driver::CUstream>* gone = nullptr);
  // Passed when both have; the caller has one reference to it, too. Throws std::bad_alloc.
  Fence join(Fence one, Fence other);
  // Each of these four is a wait, or decides that there is none: what it is called, a test can leave out.
  //
  // Throws um::Error when the driver fails.
  bool passed(Fence fence, Wait name);
  // The same; false also when the driver fails.
  bool surely_passed(Fence fence, Wait name) noexcept;
  // The host waits. Throws um::Error.
  void wait(Fence fence, Wait name);
  // What the stream is given from now on runs after it. The legacy stream needs not be told to wait for itself; any
  // other may be a new one that has the handle of one that is gone. Throws um::Error.
  void order(driver::CUstream stream, Fence fence, Wait name);
  // Called whenever a stream is about to be made to wait, from now on.
  void before_waits(std::function<void(driver::CUstream)> told) { before_wait_ = std::move(told); }
  void retain(Fence fence) noexcept;
  void release(Fence fence) noexcept;
  // `next` in place of a fence of which there is a reference; the caller's reference to it goes there.
  void replace(Fence* held, Fence next = 0) noexcept {
    if (*held != 0) release(*held);
    *held = next;
  }

  uint64_t live() const { return entries_.size() - unused_.size(); }
  uint64_t events() const { return event_count_; }  // that were created

 private:
  struct Entry {
    std::vector<driver::CUevent> events;  // that have not been seen to have passed
    std::vector<Fence> joined;            // likewise, fences of which there is a reference here
    bool legacy = false;                  // of the legacy stream alone
    uint32_t references = 0;
    uint64_t ordered = 0;  // the last `order` that came by
  };
  Fence prepared();
  driver::CUevent take_event();
  bool record_event(driver::CUevent event, driver::CUstream stream);
  driver::CUresult query(Fence fence) noexcept;
  void order_once(driver::CUstream stream, Fence fence);
  void recycle(Entry& entry) noexcept;
  static bool counted(Fence fence) { return fence != 0 && fence != kWholeDevice; }

  const Backend& backend_;
  std::vector<Entry> entries_;  // of fence 1, 2, ...
  std::vector<Fence> unused_;   // both have room for all there are
  std::vector<driver::CUevent> idle_;
  uint64_t event_count_ = 0, orders_ = 0;
  std::function<void(driver::CUstream)> before_wait_ = [](driver::CUstream) {};
};

// One reference to a fence, which was the caller's.
class HeldFence {
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
