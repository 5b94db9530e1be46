// How a test steers and observes the stand-in for CUPTI.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cupti/abi.h"

struct FakeCupti {
  using Record = um::cupti::CUpti_ActivityUnifiedMemoryCounter2;
  // Versions of the API: of CUDA 12.2, 12.6, 12.8, 13.0 and 13.2.
  static constexpr uint32_t kCuda122 = 20, kCuda126 = 24, kCuda128 = 26, kCuda130 = 130001, kCuda132 = 130202;
  // Its clock is another one than CLOCK_MONOTONIC, as CUPTI's is.
  static constexpr int64_t kClockOffsetNs = int64_t{1700000000} * 1000000000;
  static constexpr uint32_t kOtherKind = 10;  // a kernel's record, say
  static constexpr size_t kOtherBytes = 48;

  uint32_t version = kCuda128, own_version = kCuda128;    // now; at the start
  std::map<std::string, um::cupti::CUptiResult> failing;  // by symbol, for good
  std::vector<std::vector<uint8_t>> records;              // waiting for a flush
  size_t cut_bytes = 0;                                   // so many are missing at the end of the next buffer
  size_t dropped = 0;                                     // told at the next question, besides what found no buffer
  enum class Astray { no, before, same, behind } astray = Astray::no;  // where the second record of a buffer lies
  uint8_t* foreign = nullptr;  // delivered at the next flush: a buffer that another client has given
  bool lends_twice = false;    // delivers each buffer a second time
  bool keeps_buffers = false;  // never gives one back
  int64_t clock_set_back_ns = 0;

  bool subscribed = false, enabled = false;
  std::map<uint32_t, bool> counters;  // kind of counter -> enabled
  um::cupti::CUpti_BuffersCallbackRequestFunc requested = nullptr;
  um::cupti::CUpti_BuffersCallbackCompleteFunc completed = nullptr;
  std::recursive_mutex mutex;

  // The bytes of one record: ..Counter2's, or since CUDA 12.8 ..Counter3's, whose last 40 say which processors.
  size_t record_bytes() const { return version >= kCuda128 ? sizeof(Record) + 40 : sizeof(Record); }
  // What a flush will deliver.
  void add(const Record& record) { add_bytes(&record, sizeof(record), record_bytes()); }
  void add_other() { add_bytes(&kOtherKind, sizeof(kOtherKind), kOtherBytes); }
  // As at the start; who has subscribed stays.
  void reset() {
    const std::lock_guard<std::recursive_mutex> lock(mutex);
    version = own_version;
    failing.clear();
    records.clear();
    cut_bytes = dropped = 0;
    astray = Astray::no;
    foreign = nullptr;
    lends_twice = keeps_buffers = false;
    clock_set_back_ns = 0;
  }

 private:
  void add_bytes(const void* begin, size_t begin_bytes, size_t bytes) {
    const std::lock_guard<std::recursive_mutex> lock(mutex);
    std::vector<uint8_t> made(bytes, 0xee);
    std::memcpy(made.data(), begin, begin_bytes);
    records.push_back(std::move(made));
  }
};

extern "C" __attribute__((visibility("default"))) FakeCupti* fake_cupti(void);
