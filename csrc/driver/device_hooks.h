// The second seam beside the driver table: functions that a device of our own fills, because a GPU's driver has none of
// the kind (open with a capacity, touch in order, pin, events, failure injection), and by which the virtual time of
// simulated GPUs is driven. CUDA's are `kSilentHooks`, which do nothing, so that no caller asks whether there are any.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "um/model.h"
#include "umadvise.h"

namespace um::driver {

// Whether an event is that a block got or lost its device copy. Each one is told, in order, whatever else is.
enum class ResidencyChange : uint8_t { none, arrived, left };

// One thing the page machinery did. `address` is the faulting address, the touched one, or the block's start; where
// `change` is not none, nothing but it, `address` and `context` is given.
struct DeviceEvent {
  int64_t start_ns, duration_ns;
  uint64_t address, bytes;
  uint64_t context;  // DeviceHooks::set_context at the time
  um_event_kind kind;
  Cause cause;
  bool write, unordered, first_touch;
  ResidencyChange change;
};

// Ranges may carry one of these many tags, so that what is on the device can be told apart by it.
inline constexpr uint32_t kResidencyTags = 8;

// How long threads stood still for managed memory.
struct StallTimes {
  int64_t first_touch_ns, migration_ns,
      room_ns;          // for faults: that found nothing to copy, the others, what they evicted
  int64_t prefetch_ns;  // for what was prefetched and had not come

  int64_t fault_ns() const { return first_touch_ns + migration_ns + room_ns; }
};

struct DeviceTotals {
  Counters model;
  int64_t unordered_faults;
  StallTimes stood;
  uint64_t device_bytes, host_bytes;  // taken now, by all kinds of memory; what has a handle counts mapped or not
  uint64_t device_peak_bytes;         // the most there ever was, since the last reset_peaks
  uint64_t tag_bytes[kResidencyTags], tag_peak_bytes[kResidencyTags];  // the same by tag, without what has none
  int64_t silent_writes;  // to memory that is mapped read-only; each once a block
};

using AccessDescriber = void (*)(uint64_t address, char* text, size_t text_bytes);
using AccessOwner = bool (*)(uint64_t address, bool write);

// A function of any kind that does nothing.
inline constexpr struct {
  template <class Result, class... Given>
  using Function = Result (*)(Given...);
  template <class Result, class... Given>
  constexpr operator Function<Result, Given...>() const {  // NOLINT(google-explicit-constructor)
    return [](Given...) { return Result(); };
  }
} kNothing;

struct DeviceHooks {
  // Opens a device and gives it the next ordinal (for cuDeviceGet). UM_OK, or a code with the message in `message`.
  um_status (*open)(const um_emulated_options* options, int32_t* ordinal, char* message,
                    uint64_t message_bytes) = kNothing;
  // Gives everything back; every range must have been freed.
  void (*close)(int32_t ordinal) = kNothing;

  // Makes [address, address + bytes) accessible as an op needs it, in ascending address, and counts what that took as
  // ordered faults. True when anything had to be serviced. Foreign addresses are ignored. Takes the device's lock;
  // never call while holding a lock that the fault handler's caller might hold... it calls nothing back.
  bool (*touch)(int32_t ordinal, uint64_t address, uint64_t bytes, bool write) = kNothing;
  // Resident, writable and pinned / the opposite. False when it cannot all be on the device at once.
  bool (*pin)(int32_t ordinal, uint64_t address, uint64_t bytes) = kNothing;
  void (*unpin)(int32_t ordinal, uint64_t address, uint64_t bytes) = kNothing;
  // Blocks of 2 MiB in [address, address + bytes) with a device copy, and with a host copy.
  void (*residency)(int32_t ordinal, uint64_t address, uint64_t bytes, uint64_t* device_blocks,
                    uint64_t* host_blocks) = kNothing;

  // From now on whatever of [address, address + bytes) is on the device counts for `tag`, which is below
  // kResidencyTags; whole blocks of this device, until they are freed.
  void (*tag)(int32_t ordinal, uint64_t address, uint64_t bytes, uint32_t tag) = kNothing;
  // The peaks of device_bytes and tag_bytes start again from what is there now.
  void (*reset_peaks)(int32_t ordinal) = kNothing;

  // `context` is stored with every later event of this device (the running op; 0 outside).
  void (*set_context)(int32_t ordinal, uint64_t context) = kNothing;
  // Events: off at the start. `pending` takes no lock.
  void (*record)(int32_t ordinal, bool on) = kNothing;
  bool (*pending)(int32_t ordinal) = kNothing;
  uint64_t (*drain)(int32_t ordinal, DeviceEvent* out, uint64_t capacity) = kNothing;
  uint64_t (*dropped)(int32_t ordinal) = kNothing;
  void (*totals)(int32_t ordinal, DeviceTotals* out) = kNothing;
  void (*stood)(int32_t ordinal, StallTimes* out) = kNothing;

  uint64_t (*calls)(int32_t ordinal, const char* function) = kNothing;
  bool (*fail)(int32_t ordinal, const char* function, uint64_t nth) = kNothing;  // false: no such function

  // The charged link (link.h): from now on; what it has charged so far.
  void (*set_link)(int32_t ordinal, const um_link* link, const um_driver_costs* costs) = kNothing;
  void (*charged)(int32_t ordinal, um_charged* out) = kNothing;

  // Virtual time (virtual_time.h): from now on, for functions of driver::emulated_in_virtual_time; what time it is, by
  // it or else by now_ns(); an op has taken so long.
  void (*set_clock)(int32_t ordinal, const um_link* link, const um_driver_costs* costs) = kNothing;
  int64_t (*now_ns)(int32_t ordinal) = [](int32_t) { return um::now_ns(); };
  void (*run_op)(int32_t ordinal, int64_t duration_ns) = kNothing;

  // Puts the SIGSEGV handler back on top of one that was installed later (fault_handler.h); whether there was one.
  bool (*claim_signals)(bool chosen) = kNothing;

  // Hides mapped chunks from everybody but copies, whatever access was allowed / the opposite (Mappings::veil).
  bool (*veil)(int32_t ordinal, uint64_t address, uint64_t bytes, bool veiled) = kNothing;
  // Who answers for reserved memory: called in a thread of its own while the one that made an access that no mapping
  // allows waits; true: it is allowed now. That thread must not hold a lock that the owner takes. nullptr: nobody.
  void (*set_owner)(AccessOwner owner) = kNothing;
  // While on, the owner is also called before the device serves a fault on managed memory, which is served whatever the
  // owner answers: it evicts other pages first where a budget is full.
  void (*announce_faults)(int32_t ordinal, bool on) = kNothing;

  // Who can tell what a fatal access was about: writes one line's end, such as a tensor's name, to `text`. Called in
  // the signal handler, whatever locks the thread holds; nullptr: nobody.
  void (*set_describer)(AccessDescriber describer) = kNothing;

  // What holds for the device, as far as the engine minds.
  bool in_host = false;  // kernels run in the thread that asks for them, on memory that the CPU may use too
  bool exact = false;    // all that happens to its memory is counted and told
  bool alone = false;    // nobody else has memory of it, nor of its host
};

// Of a device that tells nothing beside what its driver does.
inline constexpr DeviceHooks kSilentHooks{};

}  // namespace um::driver
