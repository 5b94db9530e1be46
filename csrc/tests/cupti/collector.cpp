// Collecting records through the stand-in for CUPTI that this executable is linked to: what versions write, what is
// malformed, what fails, and that nothing is left behind.
#include "cupti/collector.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "base/clock.h"
#include "fake_cupti/fake_cupti.h"
#include "tests/check.h"

using namespace um::cupti;

namespace {

constexpr int kDriver = 13000;

FakeCupti& fake() { return *fake_cupti(); }
Collector& collector() { return Collector::of_process(); }

FakeCupti::Record record(int64_t start_ns, uint64_t address = 0x7000000, uint64_t value = 4096) {
  FakeCupti::Record made{};
  made.kind = CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER;
  made.counterKind = CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD;
  made.start = static_cast<uint64_t>(start_ns + FakeCupti::kClockOffsetNs);
  made.end = made.start + 1000;
  made.address = address;
  made.value = value;
  made.flags = CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_COHERENCE;
  made.processId = static_cast<uint32_t>(getpid());
  return made;
}

// As it was found: nobody subscribed, nothing enabled.
void check_left() {
  CHECK(!fake().subscribed);
  CHECK(!fake().enabled);
  for (const auto& [kind, enabled] : fake().counters) CHECK(!enabled);
}

void start() {
  fake().reset();
  CHECK_EQ(collector().start(kDriver), "");
}

Collected stop() {
  Collected collected = collector().stop();
  check_left();
  return collected;
}

std::vector<uint64_t> addresses(const Collected& collected) {
  std::vector<uint64_t> out;
  for (const Sample& sample : collected.samples) out.push_back(sample.address);
  return out;
}

std::string refusal(const char* symbol, CUptiResult result) {
  fake().reset();
  fake().failing[symbol] = result;
  const std::string reason = collector().start(kDriver);
  check_left();
  CHECK(collector().stop().samples.empty());
  return reason;
}

bool begins(const std::string& text, const std::string& part) { return text.compare(0, part.size(), part) == 0; }

}  // namespace

TEST(what_each_version_writes) {
  for (const uint32_t version :
       {FakeCupti::kCuda122, FakeCupti::kCuda126, FakeCupti::kCuda128, FakeCupti::kCuda130, FakeCupti::kCuda132}) {
    start();
    fake().version = version;
    const int64_t now_ns = um::now_ns();
    for (uint64_t i = 0; i < 3; ++i) fake().add(record(now_ns + static_cast<int64_t>(i) * 10, 0x1000 * (i + 1), i));
    const Collected collected = stop();
    CHECK_EQ(collected.reason, "");
    CHECK_EQ(collected.ignored, 0);
    CHECK_EQ(collected.samples.size(), size_t{3});
    for (uint64_t i = 0; i < 3; ++i) {
      const Sample& sample = collected.samples[i];
      CHECK_EQ(sample.address, 0x1000 * (i + 1));
      CHECK_EQ(sample.value, i);
      CHECK_EQ(sample.flags, uint32_t{CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_COHERENCE});
      CHECK_EQ(sample.kind, CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD);
    }
  }
}

TEST(the_counters_that_are_asked_for) {
  start();
  for (const uint32_t kind : {1, 2, 3, 4, 5, 6, 7}) CHECK(fake().counters[kind]);
  CHECK(fake().subscribed && fake().enabled);
  CHECK(stop().samples.empty());
}

// CUPTI's clock is another one; the distance is asked for at both ends.
TEST(times_are_those_of_the_events) {
  start();
  const int64_t now_ns = um::now_ns();
  fake().add(record(now_ns));
  const Collected collected = stop();
  CHECK(std::abs(collected.samples[0].start_ns - now_ns) < 50000000);  // the clocks are read one after the other
  CHECK(std::abs(collected.samples[0].end_ns - collected.samples[0].start_ns - 1000) <= 1);
}

TEST(a_clock_that_is_set_back_or_silent) {
  start();
  fake().clock_set_back_ns = int64_t{3600} * 1000000000;
  const int64_t now_ns = um::now_ns();
  fake().add(record(now_ns - fake().clock_set_back_ns));
  CHECK(std::abs(stop().samples[0].start_ns - now_ns) < 50000000);

  start();
  fake().failing["cuptiGetTimestamp"] = CUPTI_ERROR_UNKNOWN;  // at the end alone
  fake().add(record(um::now_ns()));
  CHECK(stop().samples[0].start_ns != 0);

  fake().reset();
  fake().failing["cuptiGetTimestamp"] = CUPTI_ERROR_UNKNOWN;
  CHECK_EQ(collector().start(kDriver), "");
  fake().add(record(um::now_ns()));
  const Collected collected = stop();
  CHECK_EQ(collected.reason, "");
  CHECK_EQ(collected.samples[0].start_ns, int64_t{0});
}

TEST(times_that_are_none) {
  start();
  FakeCupti::Record odd = record(0);
  for (const uint64_t start_ns : {uint64_t{0}, ~uint64_t{0}, uint64_t{1}, uint64_t{INT64_MAX}}) {
    odd.start = odd.end = start_ns;
    fake().add(odd);
  }
  for (const Sample& sample : stop().samples) {
    CHECK_EQ(sample.start_ns, int64_t{0});
    CHECK_EQ(sample.end_ns, int64_t{0});
  }
}

TEST(records_come_out_in_order_of_time) {
  start();
  const int64_t now_ns = um::now_ns();
  for (const int64_t offset : {300000, 100000, 200000})
    fake().add(record(now_ns + offset, static_cast<uint64_t>(offset)));
  CHECK(addresses(stop()) == std::vector<uint64_t>({100000, 200000, 300000}));
}

TEST(other_records_are_passed_over) {
  start();
  const int64_t now_ns = um::now_ns();
  fake().add_other();
  fake().add(record(now_ns, 1));
  fake().add_other();
  FakeCupti::Record strange = record(now_ns, 2);
  for (const uint32_t kind : {0u, 9u, 0x7fffffffu}) {
    strange.counterKind = static_cast<CUpti_ActivityUnifiedMemoryCounterKind>(kind);
    fake().add(strange);
  }
  strange = record(now_ns, 3);
  strange.processId += 1;
  fake().add(strange);
  fake().add(record(now_ns + 1, 4));
  const Collected collected = stop();
  CHECK_EQ(collected.reason, "");
  CHECK_EQ(collected.ignored, int64_t{6});
  CHECK(addresses(collected) == std::vector<uint64_t>({1, 4}));
}

TEST(a_buffer_that_is_cut_off) {
  for (const uint32_t version : {FakeCupti::kCuda122, FakeCupti::kCuda132}) {
    start();
    fake().version = version;
    for (uint64_t i = 1; i < 4; ++i) fake().add(record(um::now_ns(), i));
    // All of the last record but a few bytes of its beginning, or all but its last ones.
    for (const size_t left : {size_t{2}, size_t{8}, sizeof(FakeCupti::Record) - 1}) {
      fake().cut_bytes = fake().record_bytes() - left;
      const Collected collected = collector().stop();
      CHECK_EQ(collected.reason, "a buffer of records could not be read to its end");
      CHECK_EQ(collected.samples.size(), size_t{2});
      start();
      fake().version = version;
      for (uint64_t i = 1; i < 4; ++i) fake().add(record(um::now_ns(), i));
    }
    CHECK_EQ(stop().samples.size(), size_t{3});
  }
}

TEST(a_record_of_no_kind_ends_a_buffer) {
  start();
  fake().add(record(um::now_ns(), 1));
  fake().records.emplace_back(64, uint8_t{0});
  fake().add(record(um::now_ns(), 2));
  const Collected collected = stop();
  CHECK_EQ(collected.reason, "a buffer of records could not be read to its end");
  CHECK(addresses(collected) == std::vector<uint64_t>({1}));
}

TEST(a_library_that_goes_astray_is_not_followed) {
  for (const auto astray : {FakeCupti::Astray::before, FakeCupti::Astray::same, FakeCupti::Astray::behind}) {
    start();
    fake().astray = astray;
    fake().add(record(um::now_ns(), 1));
    fake().add(record(um::now_ns(), 2));
    const Collected collected = stop();
    CHECK_EQ(collected.reason, "a buffer of records could not be read to its end");
    CHECK(addresses(collected) == std::vector<uint64_t>({1}));
  }
}

TEST(many_buffers) {
  start();
  const uint64_t many = 3 * (uint64_t{1} << 20) / fake().record_bytes();
  const int64_t now_ns = um::now_ns();
  for (uint64_t i = 0; i < many; ++i) fake().add(record(now_ns + static_cast<int64_t>(i) * 100, i));
  const Collected collected = stop();
  CHECK_EQ(collected.reason, "");
  CHECK_EQ(collected.samples.size(), many);
  for (uint64_t i = 0; i < many; i += 1000) CHECK_EQ(collected.samples[i].address, i);
}

TEST(dropped_records_are_told) {
  start();
  fake().dropped = 17;
  fake().add(record(um::now_ns()));
  CHECK_EQ(stop().reason, "CUPTI dropped 17 records for lack of buffers");
}

TEST(buffers_of_others_and_buffers_that_come_twice) {
  std::vector<uint64_t> foreign(4096 / sizeof(uint64_t), 25);
  start();
  fake().foreign = reinterpret_cast<uint8_t*>(foreign.data());
  fake().lends_twice = true;
  fake().add(record(um::now_ns(), 1));
  const Collected collected = stop();
  CHECK_EQ(collected.reason, "");
  CHECK(addresses(collected) == std::vector<uint64_t>({1}));
  CHECK(std::count(foreign.begin(), foreign.end(), uint64_t{25}) == static_cast<std::ptrdiff_t>(foreign.size()));
}

TEST(what_fails_at_the_start_is_the_reason_and_is_undone) {
  CHECK(begins(refusal("cuptiSubscribe", CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED),
               "cuptiSubscribe failed: another profiler is active in this process"));
  CHECK(begins(refusal("cuptiSubscribe", CUPTI_ERROR_INSUFFICIENT_PRIVILEGES),
               "cuptiSubscribe failed: this user may not profile the GPU"));
  CHECK(begins(refusal("cuptiActivityRegisterCallbacks", CUPTI_ERROR_INVALID_PARAMETER),
               "cuptiActivityRegisterCallbacks failed: "));
  CHECK(begins(refusal("cuptiActivityConfigureUnifiedMemoryCounter", CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_ON_DEVICE),
               "cuptiActivityConfigureUnifiedMemoryCounter failed: this GPU has no counters of unified memory"));
  CHECK(begins(refusal("cuptiActivityEnable", CUPTI_ERROR_INSUFFICIENT_PRIVILEGES),
               "cuptiActivityEnable failed: this user may not profile the GPU"));
  start();
  CHECK(stop().reason.empty());
}

TEST(what_fails_at_the_end_is_the_reason_and_all_of_it_ends) {
  for (const char* symbol : {"cuptiActivityFlushAll", "cuptiActivityGetNumDroppedRecords"}) {
    start();
    fake().failing[symbol] = CUPTI_ERROR_UNKNOWN;
    CHECK_EQ(stop().reason, std::string(symbol) + " failed: CUPTI_ERROR_OF_SOME_KIND (999)");
  }
  start();
  fake().failing["cuptiActivityDisable"] = CUPTI_ERROR_NOT_INITIALIZED;
  CHECK_EQ(collector().stop().reason, "cuptiActivityDisable failed: CUPTI_ERROR_NOT_INITIALIZED (15)");
  CHECK(!fake().subscribed);
  fake().enabled = false;
}

TEST(one_at_a_time) {
  start();
  CHECK_EQ(collector().start(kDriver), "another device of this process is being sampled");
  fake().add(record(um::now_ns(), 1));
  CHECK_EQ(stop().samples.size(), size_t{1});
  CHECK(collector().stop().samples.empty());
}

TEST(another_client_that_is_there_first) {
  fake().reset();
  CUpti_SubscriberHandle other{};
  const auto subscribe =
      +[](CUpti_SubscriberHandle* handle) { *handle = reinterpret_cast<CUpti_SubscriberHandle>(fake_cupti()); };
  subscribe(&other);
  fake().subscribed = true;
  CHECK(begins(collector().start(kDriver), "cuptiSubscribe failed: another profiler is active"));
  CHECK(fake().subscribed);  // still the other's
  fake().subscribed = false;
  CHECK_EQ(collector().start(kDriver), "");
  stop();
}

// Last: these buffers never come back.
TEST(a_library_that_keeps_its_buffers) {
  start();
  fake().keeps_buffers = true;
  const uint64_t many = 80 * (uint64_t{1} << 20) / fake().record_bytes();
  const int64_t now_ns = um::now_ns();
  for (uint64_t i = 0; i < many; ++i) fake().add(record(now_ns, i));
  const std::string reason = stop().reason;
  CHECK(begins(reason, "CUPTI dropped ") && reason.find(" records for lack of buffers") != std::string::npos);
  start();
  fake().add(record(um::now_ns()));
  CHECK(begins(stop().reason, "CUPTI dropped 1 records"));
}
