// Accesses to a range as a kernel or a thread makes them: a window of pages slides over them, and what is missing in
// it faults together.
#pragma once

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "um/pages_driver.h"

namespace um::pages {

// serial, backward: by address. random: one page after the other in a random order; a window of a block or more slides
// by address instead and its faults arrive in a random order. parallel: such a window of any width.
enum class TouchOrder : uint8_t { serial, backward, random, parallel };

struct Touch {
  uint64_t offset_bytes, bytes;  // of the allocation; at least one byte
  Processor processor;
  bool write;
  TouchOrder order = TouchOrder::serial;
  uint32_t window_pages = 1;        // being accessed at a time; the host's threads take one
  uint32_t run_pages = 1;           // that one group of threads walks through in order
  uint32_t faults_per_service = 0;  // in one block of a batch at most; 0: no limit but the batch's
  uint64_t stride_bytes = 0;        // 0: every byte; else a request at every stride
};

// One touch. `blocks`: of the allocation, in order of address. `random` decides where the order does not.
class Toucher {
 public:
  Toucher(Driver& driver, const std::vector<uint32_t>& blocks, const Touch& touch, std::mt19937_64& random);
  void run();

 private:
  struct Fault {
    uint64_t position;  // in the order of the touch
    uint32_t block, page;
  };

  bool permuted() const { return !permutation_.empty(); }
  uint64_t page_at(uint64_t position) const;  // of the allocation
  std::pair<uint32_t, uint32_t> block_and_page(uint64_t page) const;
  uint64_t window_end(uint64_t first) const;
  bool try_access(uint64_t position);
  void finish(uint64_t position);
  uint64_t accessed_bytes(uint64_t page) const;

  std::vector<Fault> missing(uint64_t first, uint64_t outer);
  void arrive_in_random_order(std::vector<Fault>& faults);
  std::vector<Fault> batch_of(const std::vector<Fault>& faults) const;
  void service_on_device(std::vector<Fault> faults);
  void service_on_host(const Fault& fault);

  Driver& driver_;
  const std::vector<uint32_t>& blocks_;
  const Touch touch_;
  std::mt19937_64& random_;
  uint64_t count_;
  std::vector<uint32_t> permutation_;
  std::vector<bool> done_;
};

}  // namespace um::pages
