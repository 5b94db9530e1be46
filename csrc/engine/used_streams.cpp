#include "engine/used_streams.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace um {

using driver::CUstream;

namespace {

// A value that no stream has as its handle.
const CUstream kGone = reinterpret_cast<CUstream>(~uintptr_t{0});

}  // namespace

uint64_t UsedStreams::bit_of(CUstream stream) {
  if (stream == driver::legacy_stream()) stream = nullptr;
  if (stream == driver::per_thread_stream()) {
    throw Error(
        UM_UNSUPPORTED,
        "an op runs in the per-thread default stream, which is another one in each thread: chunked memory cannot "
        "follow it. Use the default stream, or one of torch.cuda.Stream()");
  }
  auto found = std::find(streams_.begin(), streams_.end(), stream);
  if (found != streams_.end()) return bit(found);
  const RequiredContext current(backend_);
  found = std::find(streams_.begin(), streams_.end(), kGone);
  if (found == streams_.end() && streams_.size() == kMostStreams) found = idle_stream();
  if (found == streams_.end()) {
    if (streams_.size() == kMostStreams) {
      throw Error(UM_UNSUPPORTED, "memory was lent (Tensor.record_stream) to more than " +
                                      std::to_string(kMostStreams) +
                                      " streams: chunked memory cannot follow who uses what; use fewer");
    }
    found = streams_.insert(streams_.end(), stream);
  }
  // Chunks are handed on in the order of the streams known then, so the new stream must wait for all earlier work.
  const HeldFence before(fences_, last_use(~uint64_t{0}, {}));
  fences_.order(stream, before, Wait::stream_joins);
  *found = stream;
  lent_ &= ~bit(found);
  return bit(found);
}

// Ops announce the blocks that they use. A stream to which memory was lent does not, so its bit is never reused.
uint64_t UsedStreams::lend(CUstream stream) {
  const uint64_t its = bit_of(stream);
  lent_ |= its;
  return its;
}

// Returns a stream without pending work, or else any, but none to which memory was lent. The next stream with its bit
// is ordered after all its work, and the stream is noted again before it gets more.
UsedStreams::Place UsedStreams::idle_stream() {
  const auto find = [&](bool idle) {
    return std::find_if(streams_.begin(), streams_.end(), [&](CUstream& stream) {
      const bool lent = (lent_ >> (&stream - streams_.data()) & 1) != 0;
      return !lent && (!idle || backend_.call().stream_query(stream) == driver::CUDA_SUCCESS);
    });
  };
  const auto idle = find(true);
  return idle != streams_.end() ? idle : find(false);
}

// The emulated device's legacy stream is the calling thread, whose work has ended.
Fences::Fence UsedStreams::last_use(uint64_t streams, std::vector<CUstream> others) {
  for (size_t i = 0; i < streams_.size(); ++i) {
    const bool here = backend_.hooks->in_host && streams_[i] == nullptr;
    if ((streams >> i & 1) != 0 && !here && streams_[i] != kGone) others.push_back(streams_[i]);
  }
  if (others.empty()) return 0;
  std::vector<CUstream> gone;
  const Fences::Fence fence = fences_.record(others.data(), others.size(), &gone);
  // Blocks may still have the bits of destroyed streams. The fence then also waits for the next stream with that bit.
  for (const CUstream stream : gone) std::replace(streams_.begin(), streams_.end(), stream, kGone);
  return fence;
}

void UsedStreams::order_all(Fences::Fence fence, Wait name) {
  for (const CUstream stream : streams_) {
    if (stream != kGone) fences_.order(stream, fence, name);
  }
}

void UsedStreams::synchronize(Wait name) noexcept {
  for (const CUstream stream : streams_) {
    if (stream != kGone && !left_out(name)) static_cast<void>(backend_.call().stream_synchronize(stream));
  }
}

}  // namespace um
