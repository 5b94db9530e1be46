// Puts a slot of a tier under a block's address and takes it away again.
//
// In both directions the page tables themselves move (mremap with MREMAP_DONTUNMAP, Linux 5.13 for shared memory): 3 us
// in, 5 us out, and no minor faults later, where mapping the file afresh costs 512 of them a block. An old kernel gets
// mmap(MAP_POPULATE) instead, which takes 65 us. Changing the protection of a whole block takes 22 us.
//
// Order matters, because other threads run on: data is complete before a slot becomes visible, protection is set before
// too (a store through a short-lived writable window would escape the model), and a block is PROT_NONE again before
// anybody copies from its slot.
#pragma once

#include <cstdint>

#include "devices/emulated/tier.h"

namespace um::emulated {

class Mapper {
 public:
  enum class Method { move_page_tables, populate };
  // The faster method that this kernel has, found by trying.
  static Method best();
  explicit Mapper(Method method) : method_(method) {}

  // All return false when the kernel refuses (the limit of mappings, vm.max_map_count). Async-signal-safe.
  bool show(const Tier& tier, uint32_t slot, uint64_t address, bool writable) const;
  bool hide(const Tier& tier, uint32_t slot, uint64_t address) const;
  // A slot whose page tables are at another address already: here they come as they are used, a minor fault a page.
  bool show_again(const Tier& tier, uint32_t slot, uint64_t address, bool writable) const;
  bool hide_again(uint64_t address) const;
  // Of what is shown.
  bool protect(uint64_t address, bool writable) const;

 private:
  Method method_;
};

}  // namespace um::emulated
