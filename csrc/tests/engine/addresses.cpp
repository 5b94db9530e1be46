// An address that code outside of ops has seen is its storage's for life, wherever that lies: no other live storage
// gets it, and it shows these bytes or none.
#include <map>
#include <random>

#include "swapping_fixture.h"

using test::kChunk;
using test::kMiB;
using test::Moving;
using test::read;
using test::Swapping;
using test::write;

namespace {

constexpr uint64_t kPart = kMiB / 4;  // shares a chunk with seven others
constexpr um_placement kPlace{UM_MEMORY_CHUNKED, UM_ROLE_INTERMEDIATE, UM_ADVICE_NONE};

// As data_ptr() gives it out.
unsigned char* taken(const Moving& block) {
  CHECK_OK(um_export_lasting(block));
  return block;
}

// As it is given to who compares addresses.
unsigned char* compared(const Moving& block) {
  const void* shown = nullptr;
  CHECK_OK(um_address_shown(block, &shown));
  return static_cast<unsigned char*>(const_cast<void*>(shown));
}

uint64_t mappings(const Swapping& device) { return um_emulated_calls(device.handle, "cuMemMap"); }

Moving filled(Swapping& device, uint64_t bytes, unsigned char value) {
  Moving block = device.allocate(bytes, kPlace);
  device.fill(block, bytes, value);
  return block;
}

// Everything that may leave the device has left it.
void evict_all(Swapping& device, uint64_t budget_chunks) {
  Moving all = device.chunks(budget_chunks);
  device.fill(all, budget_chunks * kChunk, 0);
  device.free(all);
}

}  // namespace

TEST(an_evicted_storage_returns_to_the_address_that_was_handed_out) {
  Swapping device(4);
  for (const uint64_t bytes : {kChunk, kChunk + 1000, kPart, 3 * kPart}) {
    Moving block = filled(device, bytes, 1);
    unsigned char* const address = taken(block);
    evict_all(device, 4);
    CHECK(block != address);
    const Moving others[] = {filled(device, bytes, 2), filled(device, bytes, 3)};
    for (const Moving& other : others) CHECK(taken(other) != address);
    device.expect(block, bytes, 1);
    CHECK(block == address);
    evict_all(device, 4);
    CHECK(taken(block) == address && test::holds(address, 1, bytes));
  }
}

TEST(an_export_tells_where_the_storage_lies_now) {
  Swapping device(4);
  for (const bool is_evicted : {false, true}) {
    Moving block = filled(device, kChunk, 1);
    const unsigned char* const address = compared(block);
    if (is_evicted) evict_all(device, 4);
    const unsigned char* const before = block;
    CHECK(before != address);
    const void* present = nullptr;
    CHECK_OK(um_export(before + 100, &present));
    CHECK(block == address && present == address + 100);
    CHECK_EQ(test::Device::at(address).exports, 1u);
    CHECK_OK(um_export_release(present));
    CHECK_EQ(test::Device::at(address).exports, 0u);
    evict_all(device, 4);
    device.expect(block, kChunk, 1);
  }
}

TEST(residency_follows_a_storage_to_its_address) {
  Swapping device(4);
  um_events_enable(device, 1);
  um_memory_reset_peaks(device);
  for (int i = 0; i < 3; ++i) {
    Moving block = filled(device, kChunk, 1);
    static_cast<void>(compared(block));
    evict_all(device, 4);
    device.expect(block, kChunk, 1);
    static_cast<void>(taken(block));
    evict_all(device, 4);
    device.free(block);
  }
  std::vector<um_residency> rows(um_residency_read(device, nullptr, 0));
  CHECK(!rows.empty());
  CHECK_EQ(um_residency_read(device, rows.data(), rows.size()), uint64_t{rows.size()});
  for (const um_residency& row : rows) CHECK(row.peak_bytes <= 4 * kChunk);
}

// One that is not asked for again returns to what is mapped.
TEST(a_steady_step_maps_nothing_for_addresses_that_were_asked_for_once) {
  Swapping device(4);
  std::vector<Moving> blocks;
  std::vector<unsigned char*> addresses;
  for (unsigned char i = 0; i < 6; ++i) {
    blocks.push_back(filled(device, kChunk, i));
    addresses.push_back(taken(blocks.back()));
  }
  const auto step = [&] {
    for (unsigned char i = 0; i < 6; ++i) device.expect(blocks[i], kChunk, i);
  };
  for (int i = 0; i < 4; ++i) step();
  const uint64_t before = mappings(device);
  for (int i = 0; i < 4; ++i) step();
  CHECK_EQ(mappings(device), before);
  for (size_t i = 0; i < 6; ++i) CHECK(taken(blocks[i]) == addresses[i]);
}

TEST(an_access_at_the_address_of_an_evicted_storage_is_served) {
  Swapping device(4);
  for (const uint64_t bytes : {2 * kChunk, kPart}) {
    Moving block = filled(device, bytes, 1);
    unsigned char* const address = taken(block);
    for (unsigned char value = 2; value < 5; ++value) {
      evict_all(device, 4);
      CHECK(test::holds(address, static_cast<unsigned char>(value - 1), bytes));
      evict_all(device, 4);
      std::memset(address, value, bytes);
      evict_all(device, 4);
      device.expect(block, bytes, value);
    }
  }
}

TEST(an_address_that_is_only_compared_pins_and_maps_nothing) {
  Swapping device(4);
  const Moving blocks[] = {filled(device, kChunk, 1), filled(device, kPart, 2), filled(device, 2 * kChunk, 3)};
  unsigned char* addresses[3] = {};
  const uint64_t before = mappings(device);
  for (size_t i = 0; i < 3; ++i) {
    addresses[i] = compared(blocks[i]);
    CHECK(compared(blocks[i] + 100) == addresses[i] + 100);
    CHECK_EQ(Swapping::at(blocks[i]).exports, 0u);
  }
  CHECK_EQ(mappings(device), before);
  evict_all(device, 4);
  for (size_t i = 0; i < 3; ++i) CHECK(compared(blocks[i]) == addresses[i]);
  for (size_t i = 0; i < 3; ++i) CHECK(taken(blocks[i]) == addresses[i]);  // then it lies there
  CHECK(test::holds(addresses[0], 1, kChunk) && test::holds(addresses[1], 2, kPart));
}

// While some are at their own units of a chunk, others want the same ones.
TEST(parts_of_chunks_return_to_their_units) {
  Swapping device(4);
  std::vector<Moving> blocks;
  std::vector<unsigned char*> addresses;
  for (unsigned char i = 0; i < 16; ++i) {
    blocks.push_back(filled(device, kPart, i));
    addresses.push_back(i % 2 == 0 ? taken(blocks.back()) : compared(blocks.back()));
  }
  for (const int stride : {1, 3, 5, 7}) {
    evict_all(device, 4);
    for (int i = 0; i < 16; ++i) {
      const auto which = static_cast<size_t>(i * stride % 16);
      CHECK((which % 2 == 0 ? taken(blocks[which]) : compared(blocks[which])) == addresses[which]);
      device.expect(blocks[which], kPart, static_cast<unsigned char>(which));
    }
  }
}

TEST(an_address_is_free_again_when_its_storage_is) {
  Swapping device(4);
  for (int i = 0; i < 200; ++i) {
    Moving block = filled(device, kChunk, 1);
    taken(block);
    if (i % 2 == 0) evict_all(device, 4);
    if (i % 3 == 0) device.expect(block, kChunk, 1);
    device.free(block);
  }
  CHECK_OK(um_memory_trim(device));
  CHECK_EQ(device.memory().reserved_bytes, uint64_t{0});
}

// Storages that are made, used, compared, asked for, held, and freed, in any order.
TEST(no_two_live_storages_ever_have_the_same_address) {
  Swapping device(8);
  std::mt19937_64 chance(check::seed(21));
  struct Known {
    Moving block;
    uint64_t bytes;
    unsigned char value;
    unsigned char* address;  // nullptr: not asked for yet
  };
  std::vector<Known> all;
  const auto check_all = [&] {
    std::map<unsigned char*, unsigned char*> ends;
    for (const Known& each : all) {
      if (each.address == nullptr) continue;
      const auto above = ends.upper_bound(each.address);
      CHECK(above == ends.end() || each.address + each.bytes <= above->first);
      CHECK(above == ends.begin() || std::prev(above)->second <= each.address);
      ends.emplace(each.address, each.address + each.bytes);
    }
  };
  for (uint64_t round = 0; round < check::times(1500); ++round) {
    const uint64_t kind = chance() % 8;
    if (all.size() < 3 || (kind == 0 && all.size() < 24)) {
      const uint64_t bytes = chance() % 3 == 0 ? kChunk / 2 + chance() % (2 * kChunk) : kPart / 4 + chance() % kMiB;
      const auto value = static_cast<unsigned char>(chance());
      all.push_back({filled(device, bytes, value), bytes, value, nullptr});
      continue;
    }
    Known& one = all[chance() % all.size()];
    if (kind == 1) {
      device.free(one.block);
      std::swap(one, all.back());
      all.pop_back();
    } else if (kind <= 4) {
      unsigned char* const now = kind == 2 ? compared(one.block) : taken(one.block);
      if (one.address != nullptr) CHECK(now == one.address);
      one.address = now;
      check_all();
    } else if (kind == 5 && one.address != nullptr) {
      CHECK(test::holds(one.address, one.value, one.bytes));
    } else if (kind == 6 && one.address != nullptr) {
      std::memset(one.address, ++one.value, one.bytes);
    } else {
      device.expect(one.block, one.bytes, one.value);
    }
  }
}
