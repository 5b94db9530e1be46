// Driver functions that copy and fill.
#include <algorithm>
#include <cstring>
#include <memory>

#include "devices/emulated/call.h"
#include "devices/emulated/copies.h"
#include "devices/emulated/streaming_copy.h"

namespace um::emulated {

namespace {

// One end of a copy, up to the end of its 2 MiB block: an address of the host, or reserved memory that is lent to us,
// or managed or plain memory, which its device copies itself.
struct End {
  End(CUdeviceptr where, bool write) : address(where), device(device_of(where)) {
    if (device == nullptr) {
      loan.bytes = reinterpret_cast<char*>(address);
      return;
    }
    room = kBlockBytes - address % kBlockBytes;
    lending = device->space.copies.lend(address, write, &loan);
  }
  ~End() {
    if (reserved()) device->space.copies.end_loan(address);
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  bool refused() const { return lending == Lending::refused; }
  bool reserved() const { return lending == Lending::lent; }

  const CUdeviceptr address;
  Device* const device;  // nullptr: the host
  uint64_t room = ~uint64_t{0};
  Lending lending = Lending::other_memory;
  Loan loan;  // without bytes: managed or plain memory
};

// Moves the bytes, of `hollow` memory only what is managed or plain, and says where they lay on either side.
void move_piece(const End& to, const End& from, uint64_t bytes, bool hollow, bool* to_device, bool* from_device) {
  *to_device = to.loan.on_device;
  *from_device = from.loan.on_device;
  std::unique_ptr<char[]> bounce;
  const char* source = from.loan.bytes;
  if (to.loan.bytes != nullptr && source != nullptr) {
    if (!hollow) streaming_copy(to.loan.bytes, source, bytes);
    return;
  }
  if (source == nullptr) {
    if (to.loan.bytes == nullptr) bounce = std::make_unique<char[]>(bytes);
    char* target = to.loan.bytes != nullptr ? to.loan.bytes : bounce.get();
    *from_device = from.device->space.copies.copy_out(target, from.address, bytes);
    source = target;
  }
  if (to.loan.bytes == nullptr) *to_device = to.device->space.copies.copy_in(to.address, source, bytes);
}

bool moves_nothing(const Device* device, uint64_t bytes) {
  return bytes >= kHollowBytes && device->space.blocks.hollow;
}

// A kernel or copy used an address that nothing is mapped at: what a GPU does not survive.
void lose(Device* device) { device->lost = true; }

}  // namespace

void copy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  const int64_t start = now_ns();
  Device* const target = device_of(to);
  Device* const source = device_of(from);
  Device* const either = target != nullptr ? target : source;
  const bool hollow = moves_nothing(either, bytes);
  uint64_t arrived = 0, left = 0;
  for (uint64_t done = 0; done < bytes;) {
    const End piece_to(to + done, true), piece_from(from + done, false);
    if (piece_to.refused() || piece_from.refused()) return lose(either);
    const uint64_t piece = std::min({bytes - done, piece_to.room, piece_from.room});
    if (done > 0 && (piece_to.reserved() || piece_from.reserved())) either->space.delays.wait();
    bool to_device = false, from_device = false;
    move_piece(piece_to, piece_from, piece, hollow, &to_device, &from_device);
    const bool inside = to_device && from_device && target == source;
    arrived += to_device && !inside ? piece : 0;
    left += from_device && !inside ? piece : 0;
    done += piece;
  }
  if (left > 0) source->space.copies.charge(Link::d2h, left, start);
  if (arrived > 0) target->space.copies.charge(Link::h2d, arrived, start);
}

void fill(CUdeviceptr address, unsigned char value, size_t bytes) {
  for (uint64_t done = 0; done < bytes;) {
    const End piece_to(address + done, true);
    if (piece_to.refused()) return lose(piece_to.device);
    const uint64_t piece = std::min(bytes - done, piece_to.room);
    if (piece_to.loan.bytes != nullptr) {
      if (!moves_nothing(piece_to.device, bytes)) std::memset(piece_to.loan.bytes, value, piece);
    } else {
      piece_to.device->space.copies.fill(address + done, value, piece);
    }
    done += piece;
  }
}

bool may_copy(CUdeviceptr address, size_t bytes) {
  Device* device = device_of(address);
  return address != 0 && (device == nullptr || device->space.copies.may_copy(address, bytes));
}

namespace functions {
namespace {

// `address`: the end that must be a device's.
CUresult copy_in_stream(Function function, CUdeviceptr address, CUdeviceptr to, CUdeviceptr from, size_t bytes,
                        CUstream stream) {
  const Call call(function, address);
  if (call.failed()) return call.result;
  if (!may_copy(to, bytes) || !may_copy(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return submitted(call.device->submit(stream_of(stream), [=] { copy(to, from, bytes); }));
}

}  // namespace

CUresult memcpy_htod_async(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return copy_in_stream(Function::memcpy_htod_async, to, to, reinterpret_cast<CUdeviceptr>(from), bytes, stream);
}

CUresult memcpy_dtoh_async(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy_in_stream(Function::memcpy_dtoh_async, from, reinterpret_cast<CUdeviceptr>(to), from, bytes, stream);
}

CUresult memset_d8_async(CUdeviceptr address, unsigned char value, size_t bytes, CUstream stream) {
  const Call call(Function::memset_d8_async, address);
  if (call.failed()) return call.result;
  if (!may_copy(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return submitted(call.device->submit(stream_of(stream), [=] { fill(address, value, bytes); }));
}

}  // namespace functions
}  // namespace um::emulated
