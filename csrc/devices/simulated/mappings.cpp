#include "devices/simulated/mappings.h"

#include <iterator>

#include "devices/simulated/ranges.h"

namespace um::simulator {

using driver::CUDA_ERROR_INVALID_VALUE;
using driver::CUDA_ERROR_OUT_OF_MEMORY;
using driver::CUDA_SUCCESS;
using driver::CUresult;

CUresult Mappings::reserve(uint64_t bytes, uint64_t* address) {
  if (bytes == 0 || bytes % kBlockBytes != 0) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t first = ranges_.reserve(bytes);
  if (first == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  reserved_.emplace(first, bytes);
  *address = first;
  return CUDA_SUCCESS;
}

CUresult Mappings::free(uint64_t address, uint64_t bytes) {
  const auto found = reserved_.find(address);
  if (found == reserved_.end() || found->second != bytes || overlaps(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  reserved_.erase(found);
  ranges_.free(address);
  return CUDA_SUCCESS;
}

CUresult Mappings::create(uint64_t bytes, uint64_t* handle) {
  if (bytes == 0 || bytes % kBlockBytes != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!ranges_.take_physical(bytes / kBlockBytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  handles_.emplace(++last_handle_, Handle{bytes});
  *handle = last_handle_;
  return CUDA_SUCCESS;
}

CUresult Mappings::release(uint64_t handle) {
  const auto found = handles_.find(handle);
  if (found == handles_.end() || found->second.released) return CUDA_ERROR_INVALID_VALUE;
  found->second.released = true;
  drop_unused(handle);
  return CUDA_SUCCESS;
}

void Mappings::drop_unused(uint64_t handle) {
  const auto found = handles_.find(handle);
  if (!found->second.released || found->second.mappings > 0) return;
  ranges_.give_physical(found->second.bytes / kBlockBytes);
  handles_.erase(found);
}

CUresult Mappings::map(uint64_t address, uint64_t bytes, uint64_t handle) {
  const auto found = handles_.find(handle);
  const bool whole = found != handles_.end() && !found->second.released && found->second.bytes == bytes;
  if (!whole || !reserved(address, bytes) || overlaps(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  mapped_.emplace(address, Mapping{bytes, handle});
  ++found->second.mappings;
  return CUDA_SUCCESS;
}

void Mappings::unmap(uint64_t address, uint64_t bytes) {
  const uint64_t end = address + bytes;
  for (auto each = mapped_.find(address); each != mapped_.end() && each->first < end; each = mapped_.erase(each)) {
    --handles_.at(each->second.handle).mappings;
    drop_unused(each->second.handle);
  }
}

// Within one reservation.
bool Mappings::reserved(uint64_t address, uint64_t bytes) const {
  const auto behind = reserved_.upper_bound(address);
  if (behind == reserved_.begin() || address % kBlockBytes != 0) return false;
  const auto [first, size] = *std::prev(behind);
  return address + bytes <= first + size;
}

uint64_t Mappings::count(uint64_t address, uint64_t bytes) const {
  const uint64_t end = address + bytes;
  uint64_t at = address, found = 0;
  for (auto each = mapped_.find(address); at < end && each != mapped_.end() && each->first == at; ++each, ++found)
    at += each->second.bytes;
  return at == end ? found : 0;
}

bool Mappings::overlaps(uint64_t address, uint64_t bytes) const {
  const auto behind = mapped_.lower_bound(address + bytes);
  if (behind == mapped_.begin()) return false;
  const auto& [first, last] = *std::prev(behind);
  return first + last.bytes > address;
}

}  // namespace um::simulator
