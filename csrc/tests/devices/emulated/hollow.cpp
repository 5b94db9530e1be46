// Devices whose chunks have no bytes: what is small is kept, what is large goes nowhere, and no memory is taken.
#include <sys/stat.h>

#include "devices/emulated/device.h"
#include "emulated_vmm.h"

using test::kMiB;
using test::VirtualMemory;

namespace {

constexpr uint64_t kBytes = 8 * kMiB, kSmall = um::emulated::kHollowBytes - 1;

struct Hollow : VirtualMemory {
  Hollow() : VirtualMemory(64 * kMiB) {
    blocks.hollow = true;
    const Handle handle = create(kBytes);
    map(address, kBytes, handle);
    release(handle);
    allow(address, kBytes, um::driver::CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  }
  ~Hollow() {
    unmap(address, kBytes);
    free_reserved(address, kBytes);
  }
  // Of the memory that chunks of other devices have.
  int64_t taken() const {
    struct stat told{};
    CHECK_EQ(fstat(blocks.device_tier.file(), &told), 0);
    return told.st_blocks;
  }

  um::emulated::BlockTable& blocks = um::emulated::device_at(ordinal)->space.blocks;
  const um::driver::CUdeviceptr address = reserve(kBytes);
};

}  // namespace

TEST(small_copies_and_fills_arrive_and_large_ones_move_nothing) {
  const Hollow device;
  const auto& call = device.driver.call;
  const auto source = test::pattern_of(kBytes, 1);
  std::vector<unsigned char> target(kBytes, 7);
  device.succeeds(call.memcpy_htod_async(device.address, source.data(), kBytes, nullptr));
  device.succeeds(call.memset_d8_async(device.address, 9, kBytes, nullptr));
  CHECK_EQ(+*test::bytes_at(device.address), 0);
  device.succeeds(call.memcpy_dtoh_async(target.data(), device.address, kBytes, nullptr));
  CHECK(target == std::vector<unsigned char>(kBytes, 7));

  device.succeeds(call.memcpy_htod_async(device.address + kMiB, source.data(), kSmall, nullptr));
  CHECK(test::reads(device.address + kMiB, kSmall, 1));
  device.succeeds(call.memcpy_dtoh_async(target.data(), device.address + kMiB, kSmall, nullptr));
  CHECK(std::equal(target.begin(), target.begin() + kSmall, source.begin()));
  device.succeeds(call.memset_d8_async(device.address, 9, kSmall, nullptr));
  CHECK_EQ(+*test::bytes_at(device.address), 9);
}

TEST(hollow_chunks_take_no_memory) {
  const Hollow device;
  test::write(device.address, kBytes, 1);
  CHECK_EQ(device.taken(), 0);
}
