// How many blocks are on the device, now and at most, in all and by tag.
#pragma once

#include <algorithm>
#include <cstdint>

#include "devices/emulated/hooks.h"

namespace um::emulated {

class ResidentBlocks {
 public:
  static constexpr uint8_t kUntagged = kTags;

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
  void tell(Totals& totals) const {
    totals.device_bytes = all_.now * kBlockBytes;
    totals.device_peak_bytes = all_.peak * kBlockBytes;
    for (uint32_t tag = 0; tag < kTags; ++tag) {
      totals.tag_bytes[tag] = by_tag_[tag].now * kBlockBytes;
      totals.tag_peak_bytes[tag] = by_tag_[tag].peak * kBlockBytes;
    }
  }

 private:
  struct Level {
    uint32_t now = 0, peak = 0;
    void add() { peak = std::max(peak, ++now); }
  };
  Level all_, by_tag_[kTags + 1];  // the last: kUntagged
};

}  // namespace um::emulated
