// How many blocks are on the device, now and at most, in all and by tag.
#pragma once

#include <algorithm>
#include <cstdint>

#include "driver/device_hooks.h"

namespace um::devices {

class ResidentBlocks {
 public:
  static constexpr uint8_t kUntagged = driver::kResidencyTags;

  void add(uint8_t tag) {
    all_.add();
    by_tag_[tag].add();
  }
  void subtract(uint8_t tag) {
    --all_.now;
    --by_tag_[tag].now;
  }
  void retag(uint8_t from, uint8_t to) {
    --by_tag_[from].now;
    by_tag_[to].add();
  }
  void reset_peaks() {
    all_.peak = all_.now;
    for (Level& each : by_tag_) each.peak = each.now;
  }
  void tell(driver::DeviceTotals& totals) const {
    totals.device_bytes = all_.now * kBlockBytes;
    totals.device_peak_bytes = all_.peak * kBlockBytes;
    for (uint32_t tag = 0; tag < driver::kResidencyTags; ++tag) {
      totals.tag_bytes[tag] = by_tag_[tag].now * kBlockBytes;
      totals.tag_peak_bytes[tag] = by_tag_[tag].peak * kBlockBytes;
    }
  }

 private:
  struct Level {
    uint32_t now = 0, peak = 0;
    void add() { peak = std::max(peak, ++now); }
  };
  Level all_, by_tag_[driver::kResidencyTags + 1];  // the last: kUntagged
};

}  // namespace um::devices
