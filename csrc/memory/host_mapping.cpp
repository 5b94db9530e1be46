#include "memory/host_mapping.h"

#include "driver/errors.h"
#include "memory/host_memory.h"
#include "memory/physical.h"
#include "um/model.h"

namespace um {
namespace {

using driver::CUDA_SUCCESS;
using driver::CUmemAccessDesc;
using driver::CUresult;

class Trial {
 public:
  Trial(const Backend& backend, uint64_t bytes) : backend_(backend), call_(backend.call()), bytes_(bytes) {}
  ~Trial() {
    for (Place& place : places_) {
      if (place.mapped) static_cast<void>(call_.mem_unmap(place.address, bytes_));
      if (place.address != 0) static_cast<void>(call_.mem_address_free(place.address, bytes_));
    }
    if (handle_ != 0) static_cast<void>(call_.mem_release(handle_));
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  std::string refusal() {
    const driver::CUmemAllocationProp properties = physical_properties(backend_, true);
    size_t unit = 0;
    CUresult result =
        call_.mem_get_allocation_granularity(&unit, &properties, driver::CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (result != CUDA_SUCCESS) return refused("asking for its granularity", result);
    if (unit == 0 || bytes_ % unit != 0) return "memory of the host comes in multiples of " + in_words(unit);
    result = call_.mem_create(&handle_, bytes_, &properties, 0);
    if (result != CUDA_SUCCESS) return refused("creating it", result);
    const CUmemAccessDesc both[] = {{location_of(backend_, false), driver::CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
                                    {location_of(backend_, true), driver::CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
    result = map(places_[0], both, 2);
    if (result != CUDA_SUCCESS) return refused("mapping it", result);
    result = map(places_[1], both, 1);
    return result != CUDA_SUCCESS ? refused("mapping it twice", result) : std::string();
  }

 private:
  struct Place {
    driver::CUdeviceptr address = 0;
    bool mapped = false;
  };

  CUresult map(Place& place, const CUmemAccessDesc* accesses, size_t count) {
    CUresult result = call_.mem_address_reserve(&place.address, bytes_, kBlockBytes, 0, 0);
    if (result == CUDA_SUCCESS) result = call_.mem_map(place.address, bytes_, 0, handle_, 0);
    if (result != CUDA_SUCCESS) return result;
    place.mapped = true;
    return call_.mem_set_access(place.address, bytes_, accesses, count);
  }

  std::string refused(const char* doing, CUresult result) const {
    return "the driver has no memory on the host for " + backend_.name + ": " + doing +
           " failed: " + driver::describe(call_, result);
  }

  const Backend& backend_;
  const driver::Table& call_;
  const uint64_t bytes_;
  driver::CUmemGenericAllocationHandle handle_ = 0;
  Place places_[2];
};

}  // namespace

std::string try_host_mapping(const Backend& backend, uint64_t chunk_bytes) {
  return Trial(backend, chunk_bytes).refusal();
}

}  // namespace um
