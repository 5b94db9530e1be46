// Puts a slot of a tier under a block's address and takes it away again.
//
// A slot that one block at a time shows moves with its page tables, in both directions (mremap with MREMAP_DONTUNMAP,
// Linux 5.13 for shared memory), and there are no minor faults later, where mapping the file afresh costs 512 of them a
// block. An old kernel gets mmap(MAP_POPULATE) instead, and so does a slot that many blocks show: from then on only the
// protection changes (docs/architecture.md has what each takes).
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
  enum class Access { none, read, write };
  // The faster method that this kernel has, found by trying.
  static Method best();
  explicit Mapper(Method method) : method_(method) {}

  // All of these return false when the kernel refuses (the limit of mappings, vm.max_map_count). Async-signal-safe.
  bool show(const Tier& tier, uint32_t slot, uint64_t address, bool writable) const;
  bool hide(const Tier& tier, uint32_t slot, uint64_t address) const;
  // Page tables of the block's own, for a slot that others may show too.
  bool map(const Tier& tier, uint32_t slot, uint64_t address, Access access) const;
  bool unmap(uint64_t address) const;
  // Of what is shown or mapped.
  bool protect(uint64_t address, Access access) const;

 private:
  Method method_;
};

}  // namespace um::emulated
