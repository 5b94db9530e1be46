// Live allocations that change their kind of memory: bytes, identity, and what stays where it is.
#include "swapping_fixture.h"

using test::advised;
using test::Device;
using test::kChunk;
using test::kChunked;
using test::kMiB;
using test::kPlain;
using test::Moving;
using test::Swapping;

namespace {

constexpr uint32_t kAny = ~0u;

um_conversion into(um_memory memory, uint32_t own_advice = kAny) {
  um_conversion wanted{memory, {}, {own_advice, own_advice, own_advice}};
  return wanted;
}

struct Kinds : Swapping {
  explicit Kinds(uint64_t chunks = 8) : Swapping(chunks) {
    CHECK_OK(um_owners_remember(handle, UM_OWNERS_CONVERTED_IN_OPS));
  }

  Moving filled(uint64_t bytes, const um_placement& placement, unsigned char value) {
    const Moving made = allocate(bytes, placement);
    fill(made, bytes, value);
    return made;
  }
  um_converted convert(const um_conversion& wanted) const {
    um_converted out{};
    CHECK_OK(um_convert(handle, &wanted, &out));
    return out;
  }
};

}  // namespace

TEST(each_kind_becomes_each_other_and_keeps_its_bytes_and_what_it_is) {
  for (const um_memory kind : {UM_MEMORY_MANAGED, UM_MEMORY_DEVICE, UM_MEMORY_CHUNKED}) {
    for (const uint64_t bytes : {uint64_t{700}, kChunk / 2, 3 * kChunk}) {
      Kinds device;
      const um_placement placement{kind, UM_ROLE_PARAMETER, UM_ADVICE_NONE};
      const Moving block = device.filled(bytes, placement, 5);
      CHECK_OK(um_allocation_label(block, UM_ROLE_OPTIMIZER_STATE, um_intern("momentum")));
      const um_allocation before = Device::at(block);
      for (const um_memory next : {UM_MEMORY_CHUNKED, UM_MEMORY_MANAGED, UM_MEMORY_DEVICE, UM_MEMORY_CHUNKED, kind}) {
        const bool other = Device::at(block).memory != next;
        const um_converted converted = device.convert(into(next));
        CHECK_EQ(converted.moved, other ? uint64_t{1} : uint64_t{0});
        CHECK_EQ(converted.stayed, uint64_t{0});
        const um_allocation after = Device::at(block);
        CHECK_EQ(after.memory, static_cast<uint32_t>(next));
        CHECK_EQ(after.serial, before.serial);
        CHECK_EQ(after.bytes, bytes);
        CHECK_EQ(after.name, before.name);
        CHECK_EQ(after.role, before.role);
        device.expect(block, bytes, 5);
      }
      CHECK_EQ(device.memory().live_allocations, 1u);
      CHECK_EQ(device.memory().requested_bytes, bytes);
    }
  }
}

TEST(what_was_swapped_out_becomes_managed_with_its_bytes) {
  Kinds device(2);
  std::vector<Moving> blocks;
  for (unsigned char i = 1; i <= 4; ++i) blocks.push_back(device.filled(kChunk, kChunked, i));
  const um_converted converted = device.convert(into(UM_MEMORY_MANAGED));
  CHECK_EQ(converted.moved, uint64_t{4});
  CHECK_EQ(converted.moved_bytes, 4 * kChunk);
  CHECK_EQ(device.swaps().used_bytes, uint64_t{0});
  CHECK_EQ(device.swaps().host_bytes, uint64_t{0});
  for (unsigned char i = 1; i <= 4; ++i) device.expect(blocks[i - 1u], kChunk, i);
}

TEST(more_than_the_chunks_hold_goes_to_chunks_by_way_of_the_host) {
  Kinds device(2);
  std::vector<Moving> blocks;
  for (unsigned char i = 1; i <= 6; ++i) blocks.push_back(device.filled(kChunk, test::kParameter, i));
  CHECK_EQ(device.convert(into(UM_MEMORY_CHUNKED)).moved, uint64_t{6});
  CHECK(device.swaps().used_peak_bytes <= 2 * kChunk);
  for (unsigned char i = 1; i <= 6; ++i) device.expect(blocks[i - 1u], kChunk, i);
  CHECK(device.swaps().used_peak_bytes <= 2 * kChunk);
  for (const Moving& block : blocks) device.free(block);
}

TEST(what_is_exported_or_the_users_or_nobodys_stays) {
  Kinds device;
  const Moving exported = device.filled(kChunk, test::kParameter, 1);
  const Moving users = device.filled(kChunk, advised(UM_ADVICE_ACCESSED_BY), 2);
  const Moving unused = device.allocate(kChunk, test::kParameter);
  const Moving moves = device.filled(kChunk, test::kParameter, 3);
  CHECK_OK(um_export(exported, nullptr));
  const um_converted converted = device.convert(into(UM_MEMORY_CHUNKED, 1u << UM_ADVICE_NONE));
  CHECK_EQ(converted.moved, uint64_t{1});
  CHECK_EQ(converted.stayed, uint64_t{3});
  CHECK_EQ(Device::at(moves).memory, static_cast<uint32_t>(UM_MEMORY_CHUNKED));
  for (const Moving& block : {exported, users, unused})
    CHECK_EQ(Device::at(block).memory, static_cast<uint32_t>(UM_MEMORY_MANAGED));
  CHECK_OK(um_export_release(exported));
  CHECK_EQ(device.convert(into(UM_MEMORY_CHUNKED, 1u << UM_ADVICE_NONE)).moved, uint64_t{1});
}

TEST(plain_memory_is_a_wish) {
  Kinds device(2);  // of the device's 64 MiB
  for (unsigned char i = 1; i <= 10; ++i) device.filled(4 * kChunk, test::kParameter, i);
  const um_converted converted = device.convert(into(UM_MEMORY_PREFER_DEVICE));
  CHECK(converted.moved > 0 && converted.stayed > 0);
  unsigned char value = 0;
  for (const Moving& block : device.live) device.expect(block, 4 * kChunk, ++value);
}

TEST(a_storage_that_shows_something_else_by_now_keeps_what_it_shows) {
  Kinds device;
  const Moving block = device.filled(kChunk, test::kParameter, 1);
  unsigned char* const address = block;
  block.storage()->address = nullptr;
  CHECK_EQ(device.convert(into(UM_MEMORY_CHUNKED)).stayed, uint64_t{1});
  CHECK(block.storage()->address == nullptr);
  CHECK_EQ(Device::at(address).memory, static_cast<uint32_t>(UM_MEMORY_MANAGED));
  block.storage()->address = address;
}

TEST(without_owners_nothing_moves) {
  Kinds device;
  const Moving block = device.filled(kChunk, test::kParameter, 1);
  CHECK_OK(um_owners_remember(device.handle, UM_OWNERS_FORGOTTEN));
  CHECK_EQ(device.convert(into(UM_MEMORY_CHUNKED)).stayed, uint64_t{1});
  device.expect(block, kChunk, 1);
}

TEST(a_copy_that_fails_leaves_all_as_it_was) {
  for (const um_placement& from : {test::kParameter, kPlain, kChunked}) {
    Kinds device;
    const Moving block = device.filled(kChunk, from, 7);
    const um_memory to = from.memory == UM_MEMORY_CHUNKED ? UM_MEMORY_MANAGED : UM_MEMORY_CHUNKED;
    const uint64_t reserved = device.memory().requested_bytes;
    CHECK_OK(um_emulated_fail(device.handle, "cuMemcpyDtoHAsync", 1));
    const um_conversion wanted = into(to);
    um_converted out{};
    CHECK(um_convert(device.handle, &wanted, &out) != UM_OK);
    CHECK_EQ(Device::at(block).memory, from.memory);
    CHECK_EQ(device.memory().requested_bytes, reserved);
    device.expect(block, kChunk, 7);
    CHECK_EQ(device.convert(wanted).moved, uint64_t{1});
    device.expect(block, kChunk, 7);
  }
}

TEST(residency_is_told_of_what_lies_where_after_a_conversion) {
  Kinds device;
  um_events_enable(device.handle, 1);
  const Moving block = device.filled(2 * kChunk, test::kParameter, 1);
  const auto on_device = [&] {
    um_memory_reset_peaks(device.handle);
    const um_memory_stats stats = device.memory();
    return stats.resident_bytes;
  };
  CHECK_EQ(on_device(), 2 * kChunk);
  CHECK_EQ(device.convert(into(UM_MEMORY_CHUNKED)).moved, uint64_t{1});
  CHECK_EQ(on_device(), uint64_t{0});  // on the host until it is used
  device.expect(block, 2 * kChunk, 1);
  CHECK_EQ(on_device(), 2 * kChunk);
}

TEST(an_op_that_runs_keeps_what_it_was_given_and_has_made) {
  for (const um_placement& from : {test::kParameter, kPlain, kChunked}) {
    for (const um_memory to : {UM_MEMORY_MANAGED, UM_MEMORY_DEVICE, UM_MEMORY_CHUNKED}) {
      if (to == from.memory) continue;
      for (const uint64_t bytes : {uint64_t{700}, kChunk}) {
        Kinds device;
        const Moving given = device.filled(bytes, from, 1), other = device.filled(bytes, from, 2);
        Moving made = given;
        device.op({test::read(given, bytes)}, [&] {
          unsigned char* const before = given;
          made = device.allocate(bytes, from);
          const um_converted converted = device.convert(into(to));
          CHECK_EQ(converted.moved, uint64_t{1});
          CHECK_EQ(converted.stayed, uint64_t{2});
          CHECK_EQ(static_cast<unsigned char*>(given), before);
          CHECK_EQ(Device::at(given).memory, from.memory);
          CHECK_EQ(Device::at(made).memory, from.memory);
          CHECK_EQ(Device::at(other).memory, static_cast<uint32_t>(to));
        });
        device.expect(other, bytes, 2);
        CHECK_EQ(device.convert(into(to)).stayed, uint64_t{1});  // what it has made has no owner yet
        device.expect(given, bytes, 1);
      }
    }
  }
}

TEST(an_op_that_does_not_fit_beside_limited_plain_memory_is_refused_until_that_is_converted) {
  Kinds device(1);
  constexpr uint64_t kShare = 4 * kMiB;
  CHECK_OK(um_plain_limit_set(device.handle, 24 * kMiB));
  CHECK_OK(um_budget_set(device.handle, kShare));
  const Moving plain = device.filled(8 * kMiB, kPlain, 1);
  const Moving large = device.allocate(2 * kShare, test::kParameter);
  const um_access write = test::write(large, 2 * kShare);
  const auto begin = [&] { return um_op_begin(device.handle, um_intern("fill"), UM_PHASE_FORWARD, 0, 0, &write, 1); };
  CHECK_EQ(begin(), static_cast<um_status>(UM_OUT_OF_DEVICE_MEMORY));
  device.op({}, [&] {  // in the middle of an op that makes it
    const um_placement made{UM_MEMORY_MANAGED, UM_ROLE_INTERMEDIATE, UM_ADVICE_NONE};
    void* none = nullptr;
    CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY, um_allocate(device.handle, 2 * kShare, &made, nullptr, &none));
  });
  CHECK(device.memory().resident_peak_bytes <= 24 * kMiB + kShare + kMiB * 2);
  CHECK_OK(um_plain_limit_set(device.handle, 0));
  CHECK_EQ(device.convert(into(UM_MEMORY_MANAGED)).moved, uint64_t{1});
  CHECK_OK(um_budget_set(device.handle, 28 * kMiB));
  CHECK_EQ(begin(), static_cast<um_status>(UM_OK));
  um_op_end(device.handle, nullptr, 0);
  device.expect(plain, 8 * kMiB, 1);
}
