// The latest moment that the driver's contract allows: work of one kind runs only when the host waits in the driver for
// something that has not happened, and nothing else could go on. What nobody waits for has not been done by then,
// whatever the machine is busy with: a missing wait shows every time.
//
// With it what a GPU's driver is harder about than the emulated device: streams that are destroyed while they work lose
// their handle at once and their work goes on, and page-locked memory that was freed is gone.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>

#include "devices/emulated/device.h"

namespace um::driver {

class Latest {
 public:
  enum Kind : unsigned { kernels = 1, copies = 2 };
  using Stream = emulated::Stream;

  void set(unsigned kinds) { kinds_ = kinds; }
  // Functions of the table that wait, that copy, and that make streams or page-locked memory go through here first.
  void stand_before(Table& call);
  CUresult stream_create(CUstream* stream, unsigned flags);
  // The stream, or one that nobody has where it was destroyed.
  CUstream placed(CUstream stream);
  // Before work of that kind is given to the stream.
  void submit(emulated::Device* device, Stream* stream, Kind kind);

  CUresult stream_destroy(CUstream stream);
  CUresult ctx_synchronize();
  CUresult stream_synchronize(CUstream stream);
  CUresult event_synchronize(CUevent event);
  CUresult stream_wait_event(CUstream stream, CUevent event, unsigned flags);

 private:
  using Happened = std::function<bool()>;
  template <class Call>
  CUresult wait(const Happened& happened, const Call& call);
  void hold(Stream* stream, uint64_t number);
  bool is_due(uint64_t number);
  bool at_rest(Stream* stream);

  std::atomic<unsigned> kinds_{0};
  std::atomic<uint64_t> submitted_{0};
  std::mutex lock_;
  std::set<Stream*> streams_, gone_;
  std::map<uint64_t, Stream*> held_;                  // by number: what was given first goes first
  std::map<uint64_t, Happened> awaited_;              // by the host's threads
  std::map<Stream*, emulated::Completion> standing_;  // streams that wait for an event
  uint64_t waits_ = 0;
};

// The library's.
Latest& latest();

}  // namespace um::driver
