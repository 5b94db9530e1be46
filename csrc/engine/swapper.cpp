// What the rest of the engine asks of the swapper; see swapper.h.
#include "engine/swapper.h"

#include <algorithm>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/on_error.h"
#include "memory/host_memory.h"

namespace um {

using driver::CUstream;

namespace {

// No stream's handle.
const CUstream kGone = reinterpret_cast<CUstream>(~uintptr_t{0});

}  // namespace

Swapper::Swapper(const Backend& backend, ChunkedMemory& memory, Fences& fences, SwapEvents& events, bool host_mapped)
    : backend_(backend),
      memory_(memory),
      fences_(fences),
      events_(events),
      host_mapped_(host_mapped),
      catches_(backend.hooks != nullptr) {
  const auto make = [&](CUstream* stream) {
    backend_.check(backend_.call().stream_create(stream, driver::CU_STREAM_NON_BLOCKING), "making a copy stream");
  };
  make(&to_device_);
  const OnError undo([&] { static_cast<void>(backend_.call().stream_destroy(to_device_)); });
  make(&to_host_);
}

Swapper::~Swapper() {
  static_cast<void>(backend_.call().stream_destroy(to_device_));
  static_cast<void>(backend_.call().stream_destroy(to_host_));
}

void Swapper::attach(Block* block) {
  pool_.prepare(1);
  Swapped* swapped = pool_.take();
  *swapped = Swapped{};
  swapped->block = block;
  block->swapped = swapped;
}

void Swapper::detach(Block* block) noexcept {
  Swapped* swapped = block->swapped;
  std::vector<CUstream> users;
  Fences::Fence fence = 0;
  try {
    if (swapped->place == Place::queued) queue_.erase(std::find(queue_.begin(), queue_.end(), swapped));
    if (swapped->place == Place::arriving && !left_out(Wait::arrival_freed)) users.push_back(to_device_);
    const bool leaving = swapped->place == Place::leaving || swapped->copying_out;
    if (leaving && !left_out(Wait::departure_freed)) users.push_back(to_host_);
    if (!left_out(Wait::block_freed)) fence = last_use(swapped->streams, users);
  } catch (...) {  // no event to wait for: the work itself is waited for, and a driver that fails there has lost it all
    const auto wait = [this](CUstream stream, Wait name) {
      if (stream != kGone && !left_out(name)) static_cast<void>(backend_.call().stream_synchronize(stream));
    };
    for (const CUstream stream : streams_) wait(stream, Wait::freed_without_event);
    for (const CUstream stream : {to_device_, to_host_}) wait(stream, Wait::freed_without_event_of_copies);
  }
  if (swapped->place == Place::leaving) leaving_.erase(std::find(leaving_.begin(), leaving_.end(), swapped));
  unlink(swapped);
  keep(swapped);
  if (swapped->host != nullptr) {
    memory_.give_host(swapped->host, left_out(Wait::host_copy_freed) ? 0 : fence);
  }
  memory_.freed(*block, fence);
  forget(&fence);
  forget(&swapped->moved);
  block->swapped = nullptr;
  pool_.give(swapped);
}

bool Swapper::at_hand(const Use* uses, size_t count, CUstream stream) {
  for (size_t i = 0; i < count; ++i) {
    const Swapped& block = *uses[i].block;
    const bool clean = block.host_valid || block.copying_out;
    if (block.place != Place::device || (uses[i].write && clean)) return false;
    if (catches_ && block.shown < (uses[i].write ? Access::write : Access::read)) return false;
  }
  const uint64_t bit = bit_of(stream);
  for (size_t i = 0; i < count; ++i) note_use(uses[i].block, bit, uses[i].write);
  return true;
}

void Swapper::note_use(Swapped* block, uint64_t bit, bool write) {
  block->streams |= bit;
  block->written |= write;
  keep(block);
  if (newest_ == block) return;
  unlink(block);
  link_newest(block);
}

void Swapper::acquire(const Use* uses, size_t count, CUstream stream, size_t first) {
  const uint64_t bit = bit_of(stream);
  for (size_t i = first; i < count; ++i) {  // all copies begin before one is waited for
    const Place place = uses[i].block->place;
    if (place != Place::device && place != Place::arriving && !bring(uses[i].block, stream)) refuse(uses, count);
  }
  for (size_t i = first; i < count; ++i) await(uses[i], stream, bit);
}

void Swapper::set_budget(uint64_t bytes) {
  memory_.set_budget(bytes);
  const auto above = [&] { return memory_.large().now + memory_.pinned().now > memory_.budget() + departing(); };
  while (memory_.surplus() > 0 &&
         (collect() || (above() && evict_one()) || wait_for_departure() || (above() && wait_for_arrival()))) {
  }
}

void Swapper::note_level() { used.set((memory_.large().now + memory_.pinned().now) * memory_.chunk_bytes()); }

bool Swapper::swap_in(Swapped* block) {
  if (block->place == Place::leaving) {
    stay(block);
  } else if (block->place == Place::host && block->written) {
    queue_.push_back(block);
    block->place = Place::queued;
    advance();
  } else {
    return false;
  }
  return true;
}

bool Swapper::swap_out(Swapped* block) {
  if (block->place == Place::queued) {
    queue_.erase(std::find(queue_.begin(), queue_.end(), block));
    block->place = Place::host;
    ++counted.cancelled;
    return true;
  }
  if (block->place == Place::arriving) {
    stand(*block, &counted.wait_copy_ns, Wait::departure_of_arrival);
    settle_arrival(block);
  }
  if (!may_leave(*block)) return false;
  leave(block);
  return true;
}

void Swapper::stand_by(Swapped* block) {
  if (block->place != Place::arriving) return;
  stand(*block, &counted.wait_copy_ns, Wait::export_after_arrival);
  settle_arrival(block);
  reveal(block);
}

bool Swapper::wait(Swapped* block) {
  if (block->place == Place::queued || block->place == Place::arriving) return true;  // by the op that uses it
  if (block->place != Place::leaving) return false;
  stand(*block, &counted.wait_room_ns, Wait::plan_wait);
  collect();
  return true;
}

bool Swapper::set_spare(Swapped* block) {
  if (!may_leave(*block) || block->spare) return false;
  if (block->host_valid || !block->written) {
    leave(block);
    return true;
  }
  block->spare = true;
  ++spares_;
  return true;
}

void Swapper::keep(Swapped* block) noexcept {
  if (!block->spare) return;
  block->spare = false;
  --spares_;
}

bool Swapper::read(Swapped* block, uint64_t offset, void* to, uint64_t bytes) {
  if (block->place == Place::leaving) {
    stand(*block, &counted.wait_copy_ns, Wait::read_of_leaving);
    collect();
  }
  if (block->place == Place::arriving && block->exported) {
    stand(*block, &counted.wait_copy_ns, Wait::read_of_arriving);
    settle_arrival(block);
  }
  const bool on_host = block->place == Place::host || block->place == Place::queued;
  if (!on_host && !block->host_valid) return false;
  if (!block->written) return true;  // as of any memory that nobody has written to
  if (block->copying_out) stand(*block, &counted.wait_copy_ns, Wait::read_of_host_copy);
  block->copying_out = false;
  memory_.read(block->host, offset, to, bytes);
  return true;
}

bool Swapper::write(Swapped* block, uint64_t offset, const void* from, uint64_t bytes) {
  if (block->place == Place::leaving) {
    stand(*block, &counted.wait_copy_ns, Wait::write_of_leaving);
    collect();
  }
  if (block->place != Place::host && block->place != Place::queued) return false;
  if (block->host == nullptr) {
    take_host(block);
    show_on_host(block);
  }
  memory_.write(block->host, offset, from, bytes);
  block->written = block->host_valid = true;
  return true;
}

// ---- order of use ------------------------------------------------------------------------------------------

void Swapper::unlink(Swapped* block) noexcept {
  if (block->older == nullptr && oldest_ != block) return;
  (block->older != nullptr ? block->older->newer : oldest_) = block->newer;
  (block->newer != nullptr ? block->newer->older : newest_) = block->older;
  block->older = block->newer = nullptr;
}

void Swapper::link_newest(Swapped* block) noexcept {
  block->older = newest_;
  (newest_ != nullptr ? newest_->newer : oldest_) = block;
  newest_ = block;
}

// ---- order between streams ---------------------------------------------------------------------------------

uint64_t Swapper::bit_of(CUstream stream) {
  if (stream == driver::legacy_stream()) stream = nullptr;
  if (stream == driver::per_thread_stream()) {
    throw Error(
        UM_UNSUPPORTED,
        "an op runs in the per-thread default stream, which is another one in each thread: chunked memory cannot "
        "follow it. Use the default stream, or one of torch.cuda.Stream()");
  }
  auto found = std::find(streams_.begin(), streams_.end(), stream);
  if (found != streams_.end()) return bit(found);
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
  *found = stream;
  lent_ &= ~bit(found);
  return bit(found);
}

// One that has ended all it was given, or is waited for until it has, and will be heard of again before it gets more:
// not one that memory was lent to.
std::vector<CUstream>::iterator Swapper::idle_stream() {
  const CurrentContext current(backend_);
  const auto ends = [&](driver::CUresult (*ended)(CUstream)) {
    return std::find_if(streams_.begin(), streams_.end(), [&](CUstream& stream) {
      const uint64_t bit = uint64_t{1} << (&stream - streams_.data());
      return (lent_ & bit) == 0 && ended(stream) == driver::CUDA_SUCCESS;
    });
  };
  const auto idle = ends(backend_.call().stream_query);
  if (idle != streams_.end()) return idle;
  if (left_out(Wait::stream_forgotten)) return streams_.begin();
  return ends(backend_.call().stream_synchronize);
}

// What ops gave an allocation is known; what a stream that it was lent to is given is not.
void Swapper::lend(CUstream stream, Swapped* block) {
  if (left_out(Wait::stream_lent)) return;
  const uint64_t bit = bit_of(stream);
  lent_ |= bit;
  if (block != nullptr) block->streams |= bit;
}

// After all that these streams, and `others`, have been given. The emulated device's legacy stream is the calling
// thread: what it was given has ended.
Fences::Fence Swapper::last_use(uint64_t streams, std::vector<CUstream> others) {
  for (size_t i = 0; i < streams_.size(); ++i) {
    const bool here = backend_.hooks != nullptr && streams_[i] == nullptr;
    if ((streams >> i & 1) != 0 && !here && streams_[i] != kGone) others.push_back(streams_[i]);
  }
  if (others.empty()) return 0;
  std::vector<CUstream> gone;
  const Fences::Fence fence = fences_.record(others.data(), others.size(), &gone);
  // Blocks may still name their bits: then whoever gets the bit next is waited for too.
  for (const CUstream stream : gone) std::replace(streams_.begin(), streams_.end(), stream, kGone);
  return fence;
}

void Swapper::forget(Fences::Fence* fence) noexcept {
  if (*fence != 0) fences_.release(*fence);
  *fence = 0;
}

// For the move of the block that runs.
void Swapper::stall(const Swapped& block, CUstream stream, int64_t* account, Wait name) {
  if (fences_.passed(block.moved, name)) return;
  const int64_t start_ns = now_ns();
  fences_.order(stream, block.moved, name);
  count_wait(block, start_ns, account);
}

void Swapper::stand(const Swapped& block, int64_t* account, Wait name) {
  if (block.moved == 0 || fences_.passed(block.moved, name)) return;
  const int64_t start_ns = now_ns();
  fences_.wait(block.moved, name);
  count_wait(block, start_ns, account);
}

void Swapper::count_wait(const Swapped& block, int64_t start_ns, int64_t* account) {
  const int64_t waited_ns = now_ns() - start_ns;
  *account += waited_ns;
  const bool for_room = account == &counted.wait_room_ns;
  events_.tell(for_room ? UM_EVENT_WAIT_ROOM : UM_EVENT_WAIT_COPY, block.cause, *block.block, 0, start_ns, waited_ns);
}

// ---- refusal -----------------------------------------------------------------------------------------------

void Swapper::refuse(const Use* uses, size_t count) const {
  std::vector<const Swapped*> distinct;
  uint64_t needed = 0;
  for (size_t i = 0; i < count; ++i) {
    if (std::find(distinct.begin(), distinct.end(), uses[i].block) != distinct.end()) continue;
    distinct.push_back(uses[i].block);
    needed += memory_.chunks_of(*uses[i].block->block) * memory_.chunk_bytes();
  }
  uint64_t held = memory_.pinned().now * memory_.chunk_bytes();
  for (const Swapped* each = oldest_; each != nullptr; each = each->newer) {
    const bool own = std::find(distinct.begin(), distinct.end(), each) != distinct.end();
    if (!own && !may_leave(*each)) held += memory_.backed(*each->block) * memory_.chunk_bytes();
  }
  throw Error(UM_OUT_OF_DEVICE_MEMORY,
              "its working set takes " + in_words(needed) + " in chunks of " + in_words(memory_.chunk_bytes()) +
                  ", and " + in_words(held) + " beside it cannot leave; the budget is " +
                  in_words(memory_.budget() * memory_.chunk_bytes()) + ", one of at least " + in_words(needed + held) +
                  " would do for this op; unified memory (policy advise) runs in any");
}

}  // namespace um
