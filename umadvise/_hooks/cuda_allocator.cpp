// The functions given to torch's CUDAPluggableAllocator. In its global mode it calls them for every CUDA tensor of the
// process, in any thread.
//
// This mode (torch/csrc/cuda/CUDAPluggableAllocator.cpp) requests 0 bytes too. It never checks for a null pointer, so
// running out of memory must throw. It can be installed once, and is never removed. So requests without a route (after
// unpatch(), in threads that are switched off, on other devices) get plain device memory of the same core. No CUDA
// header is needed, because a cudaStream_t passes through as a pointer. This code never calls torch, and only a refused
// request takes the GIL (remedies.h).
#include "cuda_allocator.h"

#include <pthread.h>

#include <atomic>
#include <map>
#include <mutex>

#include "allocator.h"
#include "cuda_streams.h"
#include "errors.h"
#include "fallbacks.h"
#include "hooks.h"
#include "owners.h"
#include "remedies.h"
#include "stream_order.h"

namespace um::hooks {
namespace {

constexpr int32_t kNoDevice = -1;
std::atomic<int32_t> served_ordinal{kNoDevice};

// A forked child inherits tensors, but neither the driver nor the threads that may have held a lock, so frees do
// nothing.
std::atomic<bool> forked{false};

// Set while torch's allocator must forget a block that remains allocated. It receives the block's stream.
thread_local StreamOrder::Stream* taken_over = nullptr;

// It is never destroyed, like everything else that a free needs, because tensors outlive static objects.
StreamOrder& stream_order() {
  static auto* const order = new StreamOrder;
  return *order;
}

// They are open for the life of the process, as torch's allocator is installed.
struct PlainDevices {
  std::mutex opening;
  std::map<int32_t, um_device*> by_ordinal;
};

PlainDevices& plain_devices() {
  static auto* const devices = new PlainDevices;
  return *devices;
}

um_device* plain_device(int32_t ordinal) {
  PlainDevices& devices = plain_devices();
  const std::lock_guard<std::mutex> lock(devices.opening);
  um_device*& device = devices.by_ordinal[ordinal];
  if (device == nullptr) check_core(um_device_open_cuda(ordinal, &device));
  return device;
}

void serve(int32_t ordinal) {
  static const int watching = pthread_atfork(nullptr, nullptr, [] { forked = true; });
  if (watching != 0) throw std::bad_alloc();
  own_storages();
  served_ordinal = ordinal;
}

void* allocate(uint64_t bytes, int32_t ordinal, void* stream) {
  if (bytes == 0) return ::operator new(1);  // torch distinguishes live requests by their addresses
  void* block = nullptr;
  um_device* device = ordinal == served_ordinal ? um_route_device() : nullptr;
  if (device != nullptr) {
    const um_status status =
        request_with_remedies({kCudaAllocation, device}, [&] { return um_allocate_routed(bytes, stream, &block); });
    if (status != UM_OK) throw CoreError{status, last_error};
  } else {
    constexpr um_placement kPlain{UM_MEMORY_DEVICE, UM_ROLE_INTERMEDIATE, UM_ADVICE_NONE};
    device = plain_device(ordinal);
    check_core(um_allocate(device, bytes, &kPlain, stream, &block));
  }
  try {
    stream_order().allocated({ordinal, stream},
                             [&](void* other) { check_core(um_stream_wait(device, stream, other)); });
  } catch (...) {
    um_free(block);
    throw;
  }
  return block;
}

}  // namespace

bool serves_cuda() { return served_ordinal != kNoDevice; }

void announce_stream() {
  const int32_t ordinal = served_ordinal.load(std::memory_order_relaxed);
  um_op_stream_set(ordinal == kNoDevice ? nullptr : current_cuda_stream(ordinal));
}

// Torch's allocator knows a block by the address that it returned, and throws for any other address. So the block is
// freed there before it moves, also because that address may soon be returned for another block.
bool take_over(void* block, c10::DeleterFnPtr torchs) noexcept {
  StreamOrder::Stream owner{};
  try {
    stream_order().own(block, owner);  // this call may fail, so it is first
    taken_over = &owner;
    torchs(block);
    taken_over = nullptr;
    stream_order().own(block, owner);
    return true;
  } catch (const std::exception&) {
    taken_over = nullptr;
    return false;
  }
}

void note_move(const void* from, const void* to) noexcept { stream_order().moved(from, to); }

void free_moved(void* block) {
  if (forked) return;
  stream_order().freed(block);
  um_free(block);
}

}  // namespace um::hooks

using namespace um::hooks;

um_status um_hooks_cuda_serve(int32_t ordinal) {
  return guarded([&] { serve(ordinal); });
}

um_status um_hooks_cuda_try_allocate(uint64_t bytes, int32_t ordinal, void* stream, void** out) {
  return guarded([&] { *out = allocate(bytes, ordinal, stream); });
}

void* um_hooks_cuda_allocate(ptrdiff_t bytes, int ordinal, void* stream) {
  void* block = nullptr;
  const um_status status = um_hooks_cuda_try_allocate(static_cast<uint64_t>(bytes), ordinal, stream, &block);
  if (status != UM_OK) note_refusal(static_cast<uint64_t>(bytes));
  throw_as_torch(status, um_hooks_last_error);
  ++allocations_made;
  return block;
}

void um_hooks_cuda_free(void* block, size_t bytes, int ordinal, void* stream) {
  if (forked) return;
  if (taken_over != nullptr) {
    *taken_over = {ordinal, stream};
    return;
  }
  stream_order().freed(block, {ordinal, stream});
  if (um_free(block) == 0 && bytes == 0) ::operator delete(block);
}

um_device* um_hooks_cuda_plain_device(int32_t ordinal) {
  PlainDevices& devices = plain_devices();
  const std::lock_guard<std::mutex> lock(devices.opening);
  const auto found = devices.by_ordinal.find(ordinal);
  return found == devices.by_ordinal.end() ? nullptr : found->second;
}

void um_hooks_cuda_record_stream(void* block, void* stream) {
  if (forked || um_owns(block) == 0) return;
  stream_order().lend(block, stream);
  throw_as_torch(um_stream_uses(block, stream));
}

void um_hooks_cuda_reset(void) {
  if (forked) return;
  if (um_device* const device = um_route_device()) static_cast<void>(um_memory_trim(device));
  PlainDevices& devices = plain_devices();
  const std::lock_guard<std::mutex> lock(devices.opening);
  for (const auto& [ordinal, device] : devices.by_ordinal) static_cast<void>(um_memory_trim(device));
}
