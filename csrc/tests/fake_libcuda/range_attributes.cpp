// cuMemRangeGetAttribute: which advice holds for managed memory, and where it was last prefetched to, by blocks of
// 2 MiB. The emulated device follows advice without telling; so the calls themselves are kept.
#include <map>
#include <mutex>

#include "devices/emulated/call.h"
#include "driver/driver.h"
#include "torch_functions.h"

namespace um::driver {
namespace {

constexpr int kNowhere = -2, kHost = -1;  // CU_DEVICE_INVALID, CU_DEVICE_CPU

struct Attributes {
  int read_mostly = 0, preferred_location = kNowhere, accessed_by = kNowhere, last_prefetch = kNowhere;
};

// CUmem_range_attribute of cuda.h, from 1 on.
constexpr int Attributes::* kByNumber[] = {&Attributes::read_mostly, &Attributes::preferred_location,
                                           &Attributes::accessed_by, &Attributes::last_prefetch};

std::mutex lock;
std::map<uint64_t, Attributes> blocks;

template <class Each>
void each_block(CUdeviceptr address, size_t bytes, const Each& each) {
  const std::lock_guard<std::mutex> guard(lock);
  for (uint64_t block = address / kBlockBytes; block <= (address + bytes - 1) / kBlockBytes; ++block)
    each(blocks[block]);
}

int processor(CUmemLocation location) { return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : kHost; }

void advise(Attributes& block, CUmem_advise advice, int where) {
  switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
      block.read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY ? 1 : 0;
      break;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
      block.preferred_location = advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION ? where : kNowhere;
      break;
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
      block.accessed_by = advice == CU_MEM_ADVISE_SET_ACCESSED_BY ? where : kNowhere;
  }
}

void prefetched(CUdeviceptr address, size_t bytes, CUmemLocation location) {
  each_block(address, bytes, [&](Attributes& block) { block.last_prefetch = processor(location); });
}

}  // namespace

CUresult range_advised(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location) {
  const CUresult result = emulated()->call.mem_advise(address, bytes, advice, location);
  if (result == CUDA_SUCCESS)
    each_block(address, bytes, [&](Attributes& block) { advise(block, advice, processor(location)); });
  return result;
}

CUresult range_prefetched(CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned flags, CUstream stream) {
  const CUresult result = emulated()->call.mem_prefetch_async(address, bytes, location, flags, stream);
  if (result == CUDA_SUCCESS) prefetched(address, bytes, location);
  return result;
}

CUresult ranges_prefetched(CUdeviceptr* addresses, size_t* bytes, size_t count, CUmemLocation* locations,
                           size_t* location_starts, size_t location_count, unsigned long long flags, CUstream stream) {
  const CUresult result = emulated()->call.mem_prefetch_batch_async(addresses, bytes, count, locations, location_starts,
                                                                    location_count, flags, stream);
  size_t location = 0;
  for (size_t i = 0; i < count && result == CUDA_SUCCESS; ++i) {
    if (location + 1 < location_count && location_starts[location + 1] == i) ++location;
    prefetched(addresses[i], bytes[i], locations[location]);
  }
  return result;
}

CUresult memory_freed(CUdeviceptr address) {
  um::emulated::Device* const device = um::emulated::device_of(address);
  const uint64_t bytes = device != nullptr ? device->space.ranges.bytes_at(address) : 0;
  const CUresult result = emulated()->call.mem_free(address);
  if (result == CUDA_SUCCESS && bytes > 0) each_block(address, bytes, [](Attributes& block) { block = {}; });
  return result;
}

}  // namespace um::driver

using namespace um::driver;  // NOLINT(google-build-using-namespace): this library is the driver

extern "C" __attribute__((visibility("default"))) CUresult cuMemRangeGetAttribute(void* value, size_t value_bytes,
                                                                                  int attribute, CUdeviceptr address,
                                                                                  size_t bytes) {
  const int count = static_cast<int>(sizeof(kByNumber) / sizeof(kByNumber[0]));
  um::emulated::Device* const device = um::emulated::device_of(address);
  if (value_bytes != sizeof(int) || attribute < 1 || attribute > count || device == nullptr ||
      !device->space.managed.holds(address, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  int first = 0;
  bool any = false, same = true;
  each_block(address, bytes, [&](const Attributes& block) {
    const int held = block.*kByNumber[attribute - 1];
    same = same && (!any || held == first);
    first = any ? first : held;
    any = true;
  });
  const int mixed = kByNumber[attribute - 1] == &Attributes::read_mostly ? 0 : kNowhere;
  *static_cast<int*>(value) = same ? first : mixed;
  return CUDA_SUCCESS;
}

extern "C" __attribute__((visibility("default"))) CUresult cuMemDiscardAndPrefetchBatchAsync(
    CUdeviceptr* addresses, size_t* bytes, size_t count, CUmemLocation* locations, size_t* location_starts,
    size_t location_count, unsigned long long flags, CUstream stream) {
  CUresult result = emulated()->call.mem_discard_batch_async(addresses, bytes, count, flags, stream);
  size_t location = 0;
  for (size_t i = 0; i < count && result == CUDA_SUCCESS; ++i) {
    if (location + 1 < location_count && location_starts[location + 1] == i) ++location;
    result = range_prefetched(addresses[i], bytes[i], locations[location], 0, stream);
  }
  return result;
}
