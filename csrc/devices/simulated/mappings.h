// Virtual memory management of a simulated GPU: reserved addresses, physical memory that has a handle, and where it is
// mapped. What a driver would refuse is refused.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>

#include "driver/types.h"

namespace um::simulator {

class Ranges;

class Mappings {
 public:
  explicit Mappings(Ranges& ranges) : ranges_(ranges) {}

  driver::CUresult reserve(uint64_t bytes, uint64_t* address);
  driver::CUresult free(uint64_t address, uint64_t bytes);
  driver::CUresult create(uint64_t bytes, uint64_t* handle);
  driver::CUresult release(uint64_t handle);
  driver::CUresult map(uint64_t address, uint64_t bytes, uint64_t handle);
  // How many whole mappings these are without a gap; 0: they are not.
  uint64_t count(uint64_t address, uint64_t bytes) const;
  // Such ones.
  void unmap(uint64_t address, uint64_t bytes);

 private:
  struct Handle {
    uint64_t bytes;
    uint32_t mappings = 0;
    bool released = false;  // stays as long as it is mapped
  };
  struct Mapping {
    uint64_t bytes, handle;
  };

  bool reserved(uint64_t address, uint64_t bytes) const;
  bool overlaps(uint64_t address, uint64_t bytes) const;
  void drop_unused(uint64_t handle);

  Ranges& ranges_;
  std::map<uint64_t, uint64_t> reserved_;  // address -> bytes
  std::map<uint64_t, Mapping> mapped_;     // by address
  std::unordered_map<uint64_t, Handle> handles_;
  uint64_t last_handle_ = 0;
};

}  // namespace um::simulator
