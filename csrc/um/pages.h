// The exact mode of the unified-memory model: host pages of 4, 16 or 64 KiB in 2 MiB blocks, fault batches, the density
// prefetcher, thrashing detection and access counters, with a clock and a record of every transfer.
//
// um::Model has the same rules for whole blocks and serves inside a signal handler; this one allocates as it goes and
// says how much and when, to a simulator or by hand. Source: NVIDIA/open-gpu-kernel-modules 595.45.04.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "um/pages_driver.h"
#include "um/pages_touch.h"

namespace um {

class PageModel {
 public:
  using Id = uint64_t;  // of an allocation; never used again

  // Throws um::Error when the machine cannot be.
  PageModel(const pages::Machine& machine, const pages::Costs& costs);

  // An address range of its own, from a 2 MiB boundary on, in whole pages; resident nowhere, without advice.
  Id allocate(uint64_t bytes);
  uint64_t address(Id id) const { return at(id).address; }
  void free(Id id);

  void touch(Id id, const pages::Touch& touch);
  void advise(Id id, Advice advice, Processor processor);
  void prefetch(Id id, Processor to);
  void discard(Id id);

  int64_t now_ns() const { return driver_.journal.now(); }
  const pages::PageCounters& counters() const { return driver_.journal.counters; }
  const std::vector<pages::Record>& records() const { return driver_.journal.records(); }

 private:
  struct Allocation {
    uint64_t address, bytes;
    pages::Policy policy;
    std::vector<uint32_t> blocks;
  };

  Allocation& at(Id id) const;

  pages::Driver driver_;
  std::map<Id, std::unique_ptr<Allocation>> allocations_;
  Id next_id_ = 1;
  uint64_t next_address_ = uint64_t{0x7e00} << 32;
  std::mt19937_64 random_{0};
};

}  // namespace um
