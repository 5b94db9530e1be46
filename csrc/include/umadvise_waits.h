// The names of all waits, fences and orders of streams. Tests can leave out any one of them, and a wait is tested if a
// test fails without it. tools/prove_waits.py finds that test, and docs/waits.md lists it.
//
// $UMADVISE_LEAVE_OUT_WAIT names the wait that is left out for the life of the process. Results are wrong then, so it
// is for tests alone. A device that opens prints the name to standard error, and does not open for an unknown name.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

// Each row has a name, and what goes wrong without the wait. docs/waits.md has the same order.
#define UM_WAITS(X)                                                                                                    \
  /* ---- chunks on the device ---- */                                                                                 \
  X(block_freed, "the chunks of a freed block are given to another block while kernels still use them")                \
  X(arrival_freed, "a block is freed during its swap-in, and the copy writes into another block's memory")             \
  X(departure_freed, "a block is freed during its eviction, and the copy reads memory that is no longer mapped")       \
  X(freed_without_event, "no event could be recorded for a freed block, and kernels use chunks that are unmapped")     \
  X(chunk_taken, "memory that is to be returned to the driver remains the engine's, because its last user still runs") \
  X(chunk_ready, "a chunk counts as ready before its last use has ended, and a kernel reads an illegal address")       \
  X(place_reused, "the new user of a freed place runs before the old one has ended")                                   \
  X(stream_joins, "a new stream takes over memory that other streams still use")                                       \
  X(small_chunk_freed, "small blocks are freed, and their chunk is reused while kernels use them")                     \
  X(whole_device, "no event could be recorded for small blocks that are freed while kernels use them")                 \
  /* ---- swap-ins and evictions ---- */                                                                               \
  X(op_after_arrival, "a kernel runs before its operands are swapped in")                                              \
  X(arrival_settled, "a kernel in a second stream runs before its operands are swapped in")                            \
  X(op_after_departure, "a kernel uses a block on the host before the copy to the host has ended")                     \
  X(departure_after_use, "an evicted block is copied before kernels have written it")                                  \
  X(arrival_after_departure, "a block is swapped in while its contents are still being copied to the host")            \
  X(departure_ended, "chunks are reused while the copy to the host reads them")                                        \
  X(departure_of_arrival, "a block is evicted before its swap-in has ended")                                           \
  X(departure_after_cancelled, "a block is evicted while the copy of its first, cancelled eviction still reads it")    \
  X(write_after_departure, "a kernel writes to a block that the copy of a cancelled eviction still reads")             \
  X(copy_failed, "a copy that failed half way continues in memory that another block has by then")                     \
  X(host_chunk_taken, "the host writes a block's bytes into memory that a copy still uses")                            \
  X(departure_after_host_use, "a block is evicted into host memory from which another one is still swapped in")        \
  X(host_chunk_given, "the host memory of a freed block is reused while the swap-in still reads it")                   \
  X(host_chunk_returned, "host memory is returned to the driver while a copy still uses it")                           \
  X(host_copy_freed, "a block is freed, and its host memory is reused while a copy uses it")                           \
  X(host_copy_dropped, "a kernel writes to a block, and its stale host memory is reused while a copy uses it")         \
  /* ---- the host reads and writes ---- */                                                                            \
  X(export_after_arrival, "an address is handed out before the block is swapped in")                                   \
  X(export_ended, "a block is unpinned, and its chunks are reused while kernels use the address")                      \
  X(address_unmapped, "an address that was handed out is unmapped while kernels use it")                               \
  X(read_of_host_copy, "the host reads its copy before the copy is complete")                                          \
  X(write_of_host_copy, "the host overwrites a copy that a swap-in still reads")                                       \
  X(host_after_kernels, "the host reads a resident block before kernels have written to it")                           \
  X(host_write_after_kernels, "kernels read what the host wrote after their launch")                                   \
  X(host_write_done, "the caller changes bytes that are still being copied to the device")                             \
  X(host_read_after_kernels, "the host reads before kernels have written")                                             \
  X(host_read_done, "the caller reads before the copy from the device has ended")                                      \
  X(step_undone, "a refused step restores bytes whose copy has not ended")                                             \
  X(converted_after_kernels, "memory changes its kind before kernels have written to it")                              \
  X(converted, "memory that changes its kind is reused before its bytes are copied")                                   \
  X(stray_access, "an access that no op announced reads a block whose copy has not ended")                             \
  X(stray_write, "a write that no op announced reaches a block that the copy of a cancelled eviction still reads")     \
  /* ---- streams ---- */                                                                                              \
  X(op_stream, "the engine attributes every op to the legacy stream")                                                  \
  X(stream_order, "memory changes streams, and the second stream uses it while the first still does")                  \
  X(record_stream, "memory that another stream borrowed is freed, and given to a third one")                           \
  X(stream_lent, "memory that another stream borrowed is freed, and its chunks are reused")                            \
  X(stream_gone, "a destroyed stream still uses a block, and the block's chunks are reused")                           \
  X(pages_after_op, "a plan's pages are evicted before kernels have used them, or prefetched too early")               \
  X(discard_after_use, "freed memory is discarded while kernels use it")                                               \
  X(discard_before_reuse, "freed memory is discarded after it was given to another allocation")                        \
  /* ---- measures ---- */                                                                                             \
  X(sample_begins, "a sampled step counts the device's work for earlier steps")                                        \
  X(sample_ends, "a sampled step does not count the work that the device still does for it")                           \
  X(recording_settled, "the time of an op is read while it runs, and the time of its launch is recorded instead")      \
  X(timeline_origin, "the device's clock is tied to the host's at an unknown moment")                                  \
  X(link_warm, "the first measured copy overlaps with the preparation of another one")                                 \
  X(link_measured, "the time is read before the copies have ended")                                                    \
  X(link_ended, "a measurement that failed frees memory that copies use")                                              \
  /* ---- the emulated device: the promises of its driver ---- */                                                      \
  X(emulated_stream_synchronize, "cuStreamSynchronize returns before the stream is idle")                              \
  X(emulated_event_synchronize, "cuEventSynchronize returns before the event has happened")                            \
  X(emulated_ctx_synchronize, "cuCtxSynchronize returns before the device is idle")                                    \
  X(emulated_stream_wait_event, "cuStreamWaitEvent orders nothing")                                                    \
  X(emulated_blocking_streams, "the legacy stream does not wait for blocking ones")                                    \
  X(emulated_copies, "memory is unmapped while a copy uses it")                                                        \
  X(emulated_answer, "an access continues before the engine has answered")

namespace um {

#define UM_WAIT_NAME(name, reason) name,
enum class Wait : uint8_t { unnamed, UM_WAITS(UM_WAIT_NAME) nothing, unknown };  // unnamed: a wait of a test
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
