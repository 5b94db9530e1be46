// Every wait, fence and order of streams has a name here, and tests can leave out any one of them: what no test misses
// is not tested. Which test misses which, tools/prove_waits.py finds out; docs/waits.md tells.
//
// $UMADVISE_LEAVE_OUT_WAIT names the one that is left out, for the life of the process: for tests alone, as results are
// wrong then. A device that opens says so on standard error; for a name that is not in the list none opens.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

// Name and what would go wrong without it. The order is that of docs/waits.md.
#define UM_WAITS(X)                                                                                                   \
  /* ---- chunks on the device ---- */                                                                                \
  X(block_freed, "the block's chunks go to somebody else while kernels still use them")                               \
  X(arrival_freed, "a block is freed while it arrives: its copy writes into what is somebody else's by then")         \
  X(departure_freed, "a block is freed while it leaves: its copy reads what is not mapped any more")                  \
  X(freed_without_event, "no event could be recorded for a freed block: kernels use chunks that are gone")            \
  X(chunk_taken, "memory stays the engine's that was to go back to the driver, as its last user runs")                \
  X(chunk_ready, "a chunk counts as ready before its last use is over: an illegal address")                           \
  X(place_reused, "whoever gets a freed place is overtaken by who had it before")                                     \
  X(stream_joins, "a stream that is new takes over memory of others that are not done with it")                       \
  X(small_chunk_freed, "small blocks are freed, and their chunk goes elsewhere while kernels use them")               \
  X(whole_device, "no event could be recorded for small blocks that are freed while kernels use them")                \
  /* ---- arrivals and departures ---- */                                                                             \
  X(op_after_arrival, "a kernel runs before its data have come")                                                      \
  X(arrival_settled, "a kernel in a second stream runs before its data have come")                                    \
  X(op_after_departure, "a kernel uses a block on the host before that has all of it")                                \
  X(departure_after_use, "what leaves is copied before kernels have written it")                                      \
  X(arrival_after_departure, "a block comes back while its contents are still on their way to the host")              \
  X(departure_ended, "chunks are given away while the copy to the host reads them")                                   \
  X(departure_of_arrival, "a block leaves before it has come")                                                        \
  X(departure_after_cancelled, "a block leaves while the copy of its first, cancelled departure still reads it")      \
  X(write_after_departure, "a kernel writes to a block that a cancelled departure's copy still reads")                \
  X(copy_failed, "a copy that failed half way goes on in memory that is somebody else's by then")                     \
  X(host_chunk_taken, "the host writes a block's bytes into memory of a copy that still runs")                        \
  X(departure_after_host_use, "a block leaves into the host's memory from which another one still arrives")           \
  X(host_chunk_given, "a freed block's host memory goes to another one while its copy arrives")                       \
  X(host_chunk_returned, "host memory is given back to the driver while a copy into it arrives")                      \
  X(host_copy_freed, "a block is freed, and its host memory goes to another one while a copy uses it")                \
  X(host_copy_dropped, "a kernel writes to a block, and the host memory of its stale copy goes while a copy uses it") \
  /* ---- the host reads and writes ---- */                                                                           \
  X(export_after_arrival, "an address is given out before its bytes have come")                                       \
  X(export_ended, "an export gives way, and its chunks go elsewhere while kernels use the address")                   \
  X(address_unmapped, "an address that was handed out is unmapped while kernels use it")                              \
  X(read_of_host_copy, "the host's copy is read before it is whole")                                                  \
  X(write_of_host_copy, "what a block is to arrive with is overwritten by the host")                                  \
  X(host_after_kernels, "the host reads a block that lies there before kernels have written to it")                   \
  X(host_write_after_kernels, "kernels find what the host wrote after they were launched")                            \
  X(host_write_done, "the caller changes what is still being copied to the device")                                   \
  X(host_read_after_kernels, "the host reads before kernels have written")                                            \
  X(host_read_done, "the caller reads before the copy from the device has ended")                                     \
  X(step_undone, "a refused step gives back bytes that are still being kept")                                         \
  X(converted_after_kernels, "memory changes its kind before kernels have written to it")                             \
  X(converted, "memory that changes its kind is somebody else's before its bytes have been copied")                   \
  X(stray_access, "an access that no op announced finds a block that is half there")                                  \
  X(stray_write, "a write that no op announced reaches a block that a cancelled departure's copy still reads")        \
  /* ---- streams ---- */                                                                                             \
  X(op_stream, "the engine takes every op for one of the legacy stream")                                              \
  X(stream_order, "memory changes streams, and the second works on it while the first still does")                    \
  X(record_stream, "memory that another stream was lent is freed, and given to a third one")                          \
  X(stream_lent, "memory that another stream was lent is freed, and its chunks go elsewhere")                         \
  X(stream_gone, "a stream was destroyed that still works on a block: its chunks go elsewhere")                       \
  X(pages_after_op, "a plan's pages leave before kernels have used them, and come before they should")                \
  X(discard_after_use, "freed memory is discarded while kernels use it")                                              \
  X(discard_before_reuse, "freed memory is discarded after it was given to somebody else")                            \
  /* ---- measures ---- */                                                                                            \
  X(sample_begins, "a step that is sampled counts what earlier steps do on the device")                               \
  X(sample_ends, "a step that is sampled does not count what it still does on the device")                            \
  X(recording_settled, "an op's time is asked for while it runs, and its launch counts in its place")                 \
  X(timeline_origin, "the device's clock is tied to the host's at no known moment")                                   \
  X(link_warm, "the first measured copy runs beside another one's preparation")                                       \
  X(link_measured, "the time is asked for before the copies have ended")                                              \
  X(link_ended, "a measurement that failed gives back memory that copies use")                                        \
  /* ---- the emulated device: what its driver promises ---- */                                                       \
  X(emulated_stream_synchronize, "cuStreamSynchronize returns before the stream is idle")                             \
  X(emulated_event_synchronize, "cuEventSynchronize returns before the event has happened")                           \
  X(emulated_ctx_synchronize, "cuCtxSynchronize returns before the device is idle")                                   \
  X(emulated_stream_wait_event, "cuStreamWaitEvent orders nothing")                                                   \
  X(emulated_blocking_streams, "the legacy stream does not wait for blocking ones")                                   \
  X(emulated_copies, "memory is unmapped under a copy that is at work on it")                                         \
  X(emulated_answer, "an access goes on before the engine has said what lies there")

namespace um {

#define UM_WAIT_NAME(name, reason) name,
enum class Wait : uint8_t { unnamed, UM_WAITS(UM_WAIT_NAME) nothing, unknown };  // unnamed: a test's own
#undef UM_WAIT_NAME

inline constexpr char kLeaveOutWait[] = "UMADVISE_LEAVE_OUT_WAIT";

inline Wait wait_called(const char* name) {
#define UM_WAIT_CALLED(each, reason) \
  if (std::strcmp(name, #each) == 0) return Wait::each;
  UM_WAITS(UM_WAIT_CALLED)
#undef UM_WAIT_CALLED
  return Wait::unknown;
}

inline const Wait left_out_wait = [] {
  const char* const name = std::getenv(kLeaveOutWait);  // NOLINT(concurrency-mt-unsafe): read as the library is loaded
  return name == nullptr || *name == '\0' ? Wait::nothing : wait_called(name);
}();

inline bool left_out(Wait wait) { return wait == left_out_wait; }

}  // namespace um
