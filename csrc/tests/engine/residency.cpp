// Residency by role, tensor and op: against peaks worked out by hand, and against the device asked after every change.
#include "engine/residency.h"

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

#include "driver/device_hooks.h"
#include "driver/driver.h"
#include "engine_fixture.h"
#include "swapping_fixture.h"

using test::advised;
using test::Device;
using test::kInput;
using test::kIntermediate;
using test::kMiB;
using test::kPage;
using test::kParameter;
using test::kPlain;
using test::read;

namespace {

std::vector<um_residency> rows(um_device* device) {
  std::vector<um_residency> out(um_residency_read(device, nullptr, 0));
  CHECK_EQ(um_residency_read(device, out.data(), out.size()), uint64_t{out.size()});
  return out;
}

// The peak of the one row that fits, or kNone.
constexpr uint64_t kNone = ~uint64_t{0};
template <class Fits>
uint64_t peak(um_device* device, um_residency_subject subject, const Fits& fits) {
  uint64_t found = kNone;
  for (const um_residency& row : rows(device)) {
    if (row.subject != static_cast<uint32_t>(subject) || !fits(row)) continue;
    CHECK_EQ(found, kNone);
    found = row.peak_bytes;
  }
  return found;
}
uint64_t role_peak(um_device* device, uint32_t role) {
  return peak(device, UM_RESIDENCY_ROLE, [&](const um_residency& row) { return row.role == role; });
}
uint64_t tensor_peak(um_device* device, uint32_t role, uint64_t bytes, const char* name = "") {
  return peak(device, UM_RESIDENCY_TENSOR, [&](const um_residency& row) {
    return row.role == role && row.bytes == bytes && std::string(um_string(row.name)) == name;
  });
}
uint64_t op_peak(um_device* device, const char* op) {
  return peak(device, UM_RESIDENCY_OP, [&](const um_residency& row) { return std::string(um_string(row.op)) == op; });
}

}  // namespace

TEST(allocations_that_share_a_block_come_and_go_with_it) {
  Device device(8 * kPage);
  um_events_enable(device, 1);
  unsigned char* first = device.allocate(kMiB, kParameter);
  unsigned char* second = device.allocate(kMiB / 2, kParameter);
  unsigned char* third = device.allocate(kMiB + 1, kParameter);  // half a MiB of it in the first block
  CHECK(second == first + kMiB && third == second + kMiB / 2);
  CHECK_EQ(role_peak(device, UM_ROLE_PARAMETER), uint64_t{0});
  CHECK_EQ(op_peak(device, ""), kNone);
  first[0] = 1;  // a byte of the first brings its whole block
  CHECK_EQ(role_peak(device, UM_ROLE_PARAMETER), 2 * kMiB);
  CHECK_EQ(tensor_peak(device, UM_ROLE_PARAMETER, kMiB), kMiB);
  CHECK_EQ(tensor_peak(device, UM_ROLE_PARAMETER, kMiB / 2), kMiB / 2);
  CHECK_EQ(tensor_peak(device, UM_ROLE_PARAMETER, kMiB + 1), kMiB / 2);
  CHECK_EQ(op_peak(device, ""), kPage);
  third[kMiB] = 1;
  CHECK_EQ(role_peak(device, UM_ROLE_PARAMETER), 2 * kMiB + kMiB / 2 + 1);
  CHECK_EQ(tensor_peak(device, UM_ROLE_PARAMETER, kMiB + 1), kMiB + 1);

  // A new label takes along what is resident, and leaves the peaks that were told.
  CHECK_OK(um_allocation_label(second, UM_ROLE_GRADIENT, um_intern("second.grad")));
  CHECK_EQ(role_peak(device, UM_ROLE_GRADIENT), kMiB / 2);
  CHECK_EQ(tensor_peak(device, UM_ROLE_GRADIENT, kMiB / 2, "second.grad"), kMiB / 2);
  CHECK_EQ(role_peak(device, UM_ROLE_PARAMETER), 2 * kMiB + kMiB / 2 + 1);
  CHECK_FAILS(UM_INVALID_ARGUMENT, um_allocation_label(second, UM_ROLE_COUNT, 0));
  um_memory_reset_peaks(device);
  CHECK_EQ(role_peak(device, UM_ROLE_PARAMETER), 2 * kMiB + 1);
  CHECK_EQ(role_peak(device, UM_ROLE_GRADIENT), kMiB / 2);
  CHECK_EQ(tensor_peak(device, UM_ROLE_PARAMETER, kMiB / 2), kNone);  // it is called otherwise now
  CHECK_EQ(op_peak(device, ""), kNone);                               // nothing happened since

  // Freed: gone. Its block stays, so the next in its place is there from birth.
  device.free(first);
  um_memory_reset_peaks(device);
  CHECK_EQ(role_peak(device, UM_ROLE_PARAMETER), kMiB + 1);
  CHECK_EQ(tensor_peak(device, UM_ROLE_PARAMETER, kMiB), kNone);
  CHECK(device.allocate(kMiB - 512, kParameter) == first);
  CHECK_EQ(tensor_peak(device, UM_ROLE_PARAMETER, kMiB - 512), kMiB - 512);
  CHECK_EQ(role_peak(device, UM_ROLE_PARAMETER), 2 * kMiB + 1 - 512);

  CHECK_OK(um_prefetch(first, kMiB - 512, 1, nullptr));
  CHECK_EQ(op_peak(device, ""), 2 * kPage);  // as much was there before it left
  um_memory_reset_peaks(device);
  CHECK_EQ(role_peak(device, UM_ROLE_PARAMETER), kMiB / 2 + 1);  // the third's second block
  CHECK_EQ(role_peak(device, UM_ROLE_GRADIENT), uint64_t{0});
  CHECK_EQ(tensor_peak(device, UM_ROLE_GRADIENT, kMiB / 2, "second.grad"), uint64_t{0});
}

// What a tensor is called, and what it is for, is known only after it was made, and may be after it was freed.
TEST(what_is_labelled_late_counts_for_its_last_label_from_its_birth_on) {
  Device device(8 * kPage);
  um_events_enable(device, 1);
  um_memory_reset_peaks(device);
  unsigned char* state = device.allocate(2 * kPage, kIntermediate);
  unsigned char* other = device.allocate(kPage, kIntermediate);
  state[0] = state[kPage] = other[0] = 1;
  device.free(other);
  CHECK_OK(um_allocation_label(state, UM_ROLE_OPTIMIZER_STATE, um_intern("weight.exp_avg")));
  unsigned char* gradient = device.allocate(kMiB, kIntermediate);
  gradient[0] = 1;
  CHECK_OK(um_allocation_label(gradient, UM_ROLE_GRADIENT, um_intern("weight.grad")));
  device.free(gradient);
  CHECK_EQ(role_peak(device, UM_ROLE_OPTIMIZER_STATE), 2 * kPage);
  CHECK_EQ(role_peak(device, UM_ROLE_GRADIENT), kMiB);
  CHECK_EQ(role_peak(device, UM_ROLE_INTERMEDIATE), kPage);
  CHECK_EQ(tensor_peak(device, UM_ROLE_INTERMEDIATE, 2 * kPage), kNone);
  CHECK_EQ(tensor_peak(device, UM_ROLE_OPTIMIZER_STATE, 2 * kPage, "weight.exp_avg"), 2 * kPage);
  CHECK_EQ(tensor_peak(device, UM_ROLE_GRADIENT, kMiB, "weight.grad"), kMiB);
}

TEST(more_changes_than_are_kept_are_summed_up) {
  Device device(4 * kPage);
  um_events_enable(device, 1);
  std::vector<unsigned char*> all;
  for (int i = 0; i < 2048; ++i) all.push_back(device.allocate(1024, kParameter));  // a page of them
  const size_t rounds = um::Residency::kMostChanges / all.size() / 2 + 2;
  for (size_t round = 0; round < rounds; ++round) {
    CHECK_OK(um_prefetch(all[0], 1024, 1, nullptr));
    CHECK_OK(um_prefetch(all[0], 1024, 0, nullptr));
  }
  CHECK_EQ(role_peak(device, UM_ROLE_PARAMETER), kPage);
  CHECK_OK(um_prefetch(all[0], 1024, 1, nullptr));
  um_memory_reset_peaks(device);
  CHECK_EQ(role_peak(device, UM_ROLE_PARAMETER), uint64_t{0});
}

// A device of four blocks. `weight` has two, `batch` three: the third takes the place of weight's first.
TEST(an_op_has_what_was_there_when_it_began_and_what_came) {
  Device device(4 * kPage);
  unsigned char* weight = device.allocate(2 * kPage, kParameter);
  unsigned char* batch = device.allocate(3 * kPage, kInput);
  um_events_enable(device, 1);
  const auto use_weight = [&](const char* name) { device.op({read(weight, 2 * kPage)}, [] {}, name); };
  const auto use_batch = [&](const char* name) { device.op({read(batch, 3 * kPage)}, [] {}, name); };
  use_weight("first");
  CHECK_EQ(op_peak(device, "first"), 2 * kPage);
  CHECK_EQ(role_peak(device, UM_ROLE_PARAMETER), 2 * kPage);
  use_batch("second");
  CHECK_EQ(op_peak(device, "first"), 2 * kPage);
  CHECK_EQ(op_peak(device, "second"), 4 * kPage);
  CHECK_EQ(role_peak(device, UM_ROLE_INPUT), 3 * kPage);
  um_memory_reset_peaks(device);
  CHECK_EQ(role_peak(device, UM_ROLE_PARAMETER), kPage);
  use_batch("nothing moves");
  CHECK_EQ(op_peak(device, "nothing moves"), 4 * kPage);
  CHECK_EQ(op_peak(device, "second"), kNone);
  device.free(batch);
  um_memory_reset_peaks(device);
  device.op({}, [&] { device.allocate(kPage, kIntermediate)[0] = 1; }, "makes");  // it evicts one of the batch's
  CHECK_EQ(op_peak(device, "makes"), 4 * kPage);
  const uint64_t made = peak(device, UM_RESIDENCY_TENSOR, [](const um_residency& row) {
    return std::string(um_string(row.birth_op)) == "makes" && std::string(um_string(row.birth_module)) == "module";
  });
  CHECK_EQ(made, kPage);
}

TEST(plain_memory_is_there_while_it_lives) {
  Device device(16 * kPage);
  um_events_enable(device, 1);
  unsigned char* plain = device.allocate(3 * kPage, kPlain);
  CHECK_EQ(tensor_peak(device, UM_ROLE_INTERMEDIATE, 3 * kPage), 3 * kPage);
  device.free(plain);
  um_memory_reset_peaks(device);
  CHECK_EQ(role_peak(device, UM_ROLE_INTERMEDIATE), uint64_t{0});
}

TEST(storages_that_share_a_chunk_count_it_once) {
  test::Swapping device(4);
  um_events_enable(device, 1);
  constexpr uint64_t kBytes = test::kChunk / 4;
  std::vector<test::Moving> blocks;
  device.op(
      {},
      [&] {
        for (int i = 0; i < 8; ++i) blocks.push_back(device.allocate(kBytes, test::kChunked));
      },
      "makes");
  device.op({read(blocks[0], kBytes)}, [] {}, "reads");
  CHECK_EQ(op_peak(device, "makes"), 2 * test::kChunk);
  CHECK_EQ(op_peak(device, "reads"), 2 * test::kChunk);
  CHECK_EQ(role_peak(device, UM_ROLE_INTERMEDIATE), 8 * kBytes);
  for (int i = 0; i < 4; ++i) device.free(blocks[static_cast<size_t>(i)]);
  um_memory_reset_peaks(device);
  device.op({read(blocks[7], kBytes)}, [] {}, "reads after half is gone");
  CHECK_EQ(op_peak(device, "reads after half is gone"), test::kChunk);
}

TEST(only_what_is_recorded_is_known) {
  Device device(8 * kPage);
  unsigned char* weight = device.allocate(kPage, kParameter);
  weight[0] = 1;
  CHECK_EQ(um_residency_read(device, nullptr, 0), uint64_t{0});
  um_events_enable(device, 1);  // what came before counts too
  CHECK_EQ(role_peak(device, UM_ROLE_PARAMETER), kPage);
  CHECK_EQ(rows(device).size(), size_t{UM_ROLE_COUNT + 1});
  um_events_enable(device, 0);
  CHECK_EQ(um_residency_read(device, nullptr, 0), uint64_t{0});
  unsigned char* batch = device.allocate(kPage, kInput);  // unseen
  device.free(weight);
  um_events_enable(device, 1);
  batch[0] = 1;
  CHECK_EQ(role_peak(device, UM_ROLE_PARAMETER), uint64_t{0});
  CHECK_EQ(role_peak(device, UM_ROLE_INPUT), kPage);
}

TEST(too_many_to_tell_apart_are_unknown_until_it_is_cleared) {
  um::Residency residency;
  residency.arrived(kPage, nullptr);
  for (uint32_t op = 0; op < um::Residency::kMostSubjects; ++op) residency.note({1, 1, op, 0, 0}, 0);
  CHECK_EQ(residency.read(nullptr, 0), uint64_t{UM_ROLE_COUNT + um::Residency::kMostSubjects});
  residency.note({1, 1, 0, 1, 0}, 0);
  CHECK(!residency.known());
  CHECK_EQ(residency.read(nullptr, 0), uint64_t{0});
  residency.arrived(0, nullptr);
  residency.clear();
  CHECK_EQ(residency.read(nullptr, 0), uint64_t{UM_ROLE_COUNT});
}

// A thousand and one things happen to small and large allocations on a small device; after each the device is asked for
// every block of every allocation. One thing never adds to a sum twice, so no peak falls between two questions. All
// answers count for the labels that allocations have at the end.
TEST(peaks_are_the_highest_of_all_answers) {
  using Key = std::tuple<uint32_t, uint32_t, uint64_t>;  // role, name, bytes
  for (const uint32_t seed : {1u, 2u, 3u, 4u}) {
    Device device(8 * kPage);
    um_device_info info{};
    CHECK_OK(um_device_query(device, &info));
    const um::driver::DeviceHooks& hooks = *um::driver::emulated()->hooks;
    um_events_enable(device, 1);
    std::map<uint64_t, Key> labels;                     // by serial
    std::vector<std::map<uint64_t, uint64_t>> answers;  // bytes by serial
    uint64_t most_events = 0;
    const auto ask = [&] {
      std::vector<um_allocation> live(um_allocations(device, nullptr, 0));
      um_allocations(device, live.data(), live.size());
      answers.emplace_back();
      for (const um_allocation& each : live) {
        uint64_t bytes = 0;
        for (uint64_t byte = 0; byte < each.bytes; byte += 512) {
          uint64_t on_device = 0, on_host = 0;
          hooks.residency(info.ordinal, each.address + byte, 1, &on_device, &on_host);
          if (on_device != 0) bytes += std::min<uint64_t>(512, each.bytes - byte);
        }
        answers.back()[each.serial] = bytes;
        labels[each.serial] = {each.role, each.name, each.bytes};
      }
    };
    const auto compare = [&] {
      std::map<Key, uint64_t> told, highest;
      uint64_t role_highest[UM_ROLE_COUNT] = {};
      for (const auto& answer : answers) {
        std::map<Key, uint64_t> now;
        uint64_t role_now[UM_ROLE_COUNT] = {};
        for (const auto& [serial, bytes] : answer) {
          now[labels[serial]] += bytes;
          role_now[std::get<0>(labels[serial])] += bytes;
        }
        for (const auto& [key, bytes] : now) highest[key] = std::max(highest[key], bytes);
        for (int role = 0; role < UM_ROLE_COUNT; ++role)
          role_highest[role] = std::max(role_highest[role], role_now[role]);
      }
      for (const um_residency& row : rows(device)) {
        if (row.subject == UM_RESIDENCY_ROLE) CHECK_EQ(row.peak_bytes, role_highest[row.role]);
        if (row.subject == UM_RESIDENCY_TENSOR) told[{row.role, row.name, row.bytes}] = row.peak_bytes;
      }
      CHECK(told == highest);
    };
    std::mt19937 random(seed);
    const uint64_t sizes[] = {700, 100 << 10, 1300 << 10, kPage, 3 * kPage - 300};
    const um_placement placements[] = {kParameter, kInput, kIntermediate, advised(UM_ADVICE_READ_MOSTLY), kPlain};
    for (int turn = 0; turn < 1001; ++turn) {
      const auto what = static_cast<uint32_t>(random() % 16);
      if (device.live.size() < 3 || (what < 3 && device.live.size() < 24)) {
        const um_placement& placement = placements[random() % 5];
        const uint64_t bytes = sizes[random() % (placement.memory == UM_MEMORY_DEVICE ? 3 : 5)];
        device.allocate(bytes, placement);
      } else {
        auto* one = static_cast<unsigned char*>(device.live[random() % device.live.size()]);
        const um_allocation at = Device::at(one);
        unsigned char* byte = one + random() % at.bytes;
        if (what < 6) {
          device.free(one);
        } else if (what < 8) {
          CHECK_OK(um_allocation_label(one, static_cast<uint32_t>(turn / 2) % UM_ROLE_COUNT,
                                       um_intern(turn % 2 ? "one" : "other")));
        } else if (what < 10) {
          if (at.memory == UM_MEMORY_MANAGED) CHECK_OK(um_prefetch(byte, 1, what % 2, nullptr));
        } else if (what < 12) {
          static_cast<void>(*const_cast<volatile unsigned char*>(byte));
        } else if (what < 15) {
          *byte = 1;
        } else {
          compare();
          um_memory_reset_peaks(device);
          answers.clear();
        }
      }
      ask();
      most_events = std::max<uint64_t>(most_events, device.events().size());
    }
    compare();
    CHECK(most_events > 0);
    CHECK(device.counters().evictions > 20);
  }
}
