// Virtual memory management on the emulated device: real bytes under reserved addresses, and everything that a GPU's
// driver would refuse.
#include "emulated_vmm.h"

#include <random>

using namespace um::driver;  // NOLINT
using test::kBlock;
using test::kMiB;
using test::VirtualMemory;

TEST(what_is_mapped_is_readable_writable_and_keeps_its_bytes) {
  VirtualMemory device(16 * kMiB);
  const auto address = device.reserve(8 * kMiB);
  const auto handle = device.create(kBlock);
  device.map(address + kBlock, kBlock, handle);
  device.allow(address + kBlock, kBlock, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  test::write(address + kBlock, kBlock, 1);
  CHECK(test::reads(address + kBlock, kBlock, 1));
  // Elsewhere: the bytes are the handle's, not the address's.
  device.unmap(address + kBlock, kBlock);
  device.map(address + 3 * kBlock, kBlock, handle);
  device.allow(address + 3 * kBlock, kBlock, CU_MEM_ACCESS_FLAGS_PROT_READ);
  CHECK(test::reads(address + 3 * kBlock, kBlock, 1));
  device.unmap(address + 3 * kBlock, kBlock);
  device.release(handle);
  device.free_reserved(address, 8 * kMiB);
}

TEST(a_handle_that_is_mapped_twice_is_one_memory) {
  for (const bool on_device : {true, false}) {
    VirtualMemory device(16 * kMiB);
    const auto address = device.reserve(4 * kBlock);
    const auto handle = device.create(2 * kBlock, on_device);
    for (const auto at : {address, address + 2 * kBlock}) {
      device.map(at, 2 * kBlock, handle);
      device.allow(at, 2 * kBlock, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    }
    test::write(address, 2 * kBlock, 1);
    CHECK(test::reads(address + 2 * kBlock, 2 * kBlock, 1));
    // Whichever goes first, the other one stays.
    device.unmap(address, 2 * kBlock);
    CHECK(test::reads(address + 2 * kBlock, 2 * kBlock, 1));
    test::write(address + 2 * kBlock, 2 * kBlock, 2);
    device.map(address, 2 * kBlock, handle);
    device.allow(address, 2 * kBlock, CU_MEM_ACCESS_FLAGS_PROT_READ);
    CHECK(test::reads(address, 2 * kBlock, 2));
    device.release(handle);  // the memory stays as long as it is mapped
    device.unmap(address + 2 * kBlock, 2 * kBlock);
    CHECK(test::reads(address, 2 * kBlock, 2));
    CHECK_EQ(device.free_bytes(), on_device ? 12 * kMiB : 16 * kMiB);
    device.unmap(address, 2 * kBlock);
    CHECK_EQ(device.free_bytes(), 16 * kMiB);
    device.free_reserved(address, 4 * kBlock);
  }
}
