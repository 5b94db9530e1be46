// A page-accurate model and what its tests ask it. Every expected number is worked by hand from the driver's rules.
#pragma once

#include <string>

#include "um/pages.h"

using namespace um;
using pages::Direction;
using pages::Record;
using pages::Touch;
using pages::TouchOrder;

namespace {

constexpr Processor kHost = Processor::host, kDevice = Processor::device;
constexpr uint64_t kMiB = uint64_t{1} << 20, kKiB = 1024, kBlock = 2 * kMiB;
constexpr bool kRead = false, kWrite = true;

struct Bench {
  explicit Bench(uint64_t blocks, bool coherent = false, uint32_t page_bytes = 4096)
      : model({blocks * kBlock, page_bytes, coherent}, {}) {}

  PageModel::Id allocate(uint64_t bytes = kBlock) { return model.allocate(bytes); }
  // In the largest batches: two services fill a block.
  void device(PageModel::Id id, bool write, uint64_t bytes = kBlock, uint64_t offset = 0) {
    model.touch(id, {offset, bytes, kDevice, write, TouchOrder::serial, 512});
  }
  void host(PageModel::Id id, bool write, uint64_t bytes = kBlock, uint64_t offset = 0) {
    model.touch(id, {offset, bytes, kHost, write});
  }
  void advise(PageModel::Id id, Advice advice, Processor processor = kDevice) { model.advise(id, advice, processor); }
  const Counters& count() { return model.counters().shared; }
  int64_t h2d() { return total(count().bytes_h2d); }
  int64_t d2h() { return total(count().bytes_d2h); }
  static int64_t total(const int64_t (&bytes)[kCauses]) {
    int64_t sum = 0;
    for (int64_t part : bytes) sum += part;
    return sum;
  }
  // Sizes in KiB of the transfers of one cause since `first`.
  std::string sizes(Direction direction, Cause cause, size_t first = 0) {
    std::string text;
    for (size_t i = first; i < model.records().size(); ++i) {
      const Record& record = model.records()[i];
      if (record.direction == direction && record.cause == cause) text += std::to_string(record.bytes / kKiB) + " ";
    }
    return text;
  }
  size_t now() { return model.records().size(); }

  PageModel model;
};

constexpr int64_t kBytes = kBlock;

}  // namespace
