// Physical memory that has a handle: slots of a tier, taken from managed memory where they are the device's.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "devices/emulated/ranges.h"

namespace um::emulated {

struct Handle {
  std::vector<uint32_t> slots;  // on its tier
  bool on_device;
  bool released = false;  // stays as long as it is mapped
  uint32_t mappings = 0;
};

class PhysicalMemory {
 public:
  // All are borrowed.
  PhysicalMemory(BlockTable& table, Migrator& migrator, Link& link, Ranges& ranges)
      : blocks_(table), migrator_(migrator), link_(link), ranges_(ranges) {}

  driver::CUresult create(uint64_t bytes, bool on_device, driver::CUmemGenericAllocationHandle* handle);
  driver::CUresult release(uint64_t handle);

  // With the lock of the ranges held. nullptr: there is none, or it was released.
  Handle* find(uint64_t handle);
  // One of its mappings is gone.
  void unmapped(uint64_t handle);

 private:
  using Handles = std::map<uint64_t, Handle>;

  bool take_slot(Handle& handle);
  void give_slots(const Handle& handle);
  void drop_unused(Handles::iterator handle);

  BlockTable& blocks_;
  Migrator& migrator_;
  Link& link_;
  Ranges& ranges_;
  Handles handles_;
  uint64_t last_handle_ = 0;
};

}  // namespace um::emulated
