// Virtual memory management on the emulated device: real bytes under reserved addresses, and everything that a GPU's
// driver would refuse.
#include <random>

#include "emulated_vmm.h"

using namespace um::driver;  // NOLINT
using test::EmulatedDevice;
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

TEST(access_is_of_the_range_that_it_was_set_for) {
  VirtualMemory device(32 * kMiB);
  const auto address = device.reserve(6 * kBlock);
  const auto two = device.create(2 * kBlock), one = device.create(kBlock), host = device.create(kBlock, false);
  device.map(address, 2 * kBlock, two);
  device.map(address + 2 * kBlock, kBlock, one);
  device.map(address + 4 * kBlock, kBlock, host);
  // Several mappings at once, as long as there is no hole.
  device.allow(address, 3 * kBlock, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  test::write(address, 3 * kBlock, 1);
  device.allow(address, 2 * kBlock, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  device.allow(address + 2 * kBlock, kBlock, CU_MEM_ACCESS_FLAGS_PROT_READ);
  CHECK(!device.copies(address, kBlock));
  CHECK(device.copies(address + 2 * kBlock, kBlock));
  device.allow(address, 3 * kBlock, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CHECK(test::reads(address, 3 * kBlock, 1));
  // The host's access to memory that lies there is a grant of its own.
  CUmemAccessDesc both[2] = {device.access(CU_MEM_ACCESS_FLAGS_PROT_NONE),
                             {{CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
  CHECK_EQ(device.driver.call.mem_set_access(address + 4 * kBlock, kBlock, both, 2), CUDA_SUCCESS);
  test::write(address + 4 * kBlock, kBlock, 2);
  device.allow(address + 4 * kBlock, kBlock, CU_MEM_ACCESS_FLAGS_PROT_READ);
  test::write(address + 4 * kBlock, kBlock, 3);
  CHECK_EQ(device.totals().silent_writes, 0);
  CHECK_EQ(device.driver.call.mem_set_access(address, 2 * kBlock, both + 1, 1), CUDA_ERROR_INVALID_VALUE);
  // After unmapping nothing is left of it.
  device.unmap(address, 3 * kBlock);
  device.map(address, kBlock, one);
  CHECK(!device.copies(address, kBlock));
  device.unmap(address, kBlock);
  device.unmap(address + 4 * kBlock, kBlock);
  for (const auto handle : {two, one, host}) device.release(handle);
  device.free_reserved(address, 6 * kBlock);
}

TEST(handles_take_the_devices_memory_and_managed_blocks_leave_for_them) {
  VirtualMemory device(32 * kMiB);
  const uint64_t managed_bytes = 24 * kMiB;
  unsigned char* managed = device.managed(managed_bytes);
  test::write(EmulatedDevice::as_pointer(managed), managed_bytes, 1);
  CHECK_EQ(device.free_bytes(), 8 * kMiB);
  const auto handle = device.create(20 * kMiB);
  CHECK_EQ(device.totals().device_bytes, 32 * kMiB);
  CHECK_EQ(device.totals().model.evictions, 6);
  CHECK(test::reads(EmulatedDevice::as_pointer(managed), managed_bytes, 1));  // in the 12 MiB that are left
  CHECK(device.totals().device_bytes <= 32 * kMiB);
  // Most that there is, and one block more.
  const auto rest = device.create(12 * kMiB);
  const auto wanted = device.properties(true);
  VirtualMemory::Handle more = 0;
  CHECK_EQ(device.driver.call.mem_create(&more, kBlock, &wanted, 0), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQ(device.driver.call.mem_create(&more, 64 * kMiB, &wanted, 0), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQ(device.free_bytes(), 0u);
  CHECK(test::reads(EmulatedDevice::as_pointer(managed), managed_bytes, 1));  // from the host
  device.release(rest);
  device.release(handle);
  // Pinned blocks do not leave; what was taken before that was found out is given back.
  CHECK(device.hooks.pin(device.ordinal, reinterpret_cast<uint64_t>(managed), 16 * kMiB));
  const uint64_t free_before = device.free_bytes();
  CHECK_EQ(device.driver.call.mem_create(&more, 18 * kMiB, &wanted, 0), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(device.free_bytes() >= free_before);
  device.release(device.create(16 * kMiB));
  device.hooks.unpin(device.ordinal, reinterpret_cast<uint64_t>(managed), 16 * kMiB);
  CHECK(test::reads(EmulatedDevice::as_pointer(managed), managed_bytes, 1));
  device.free(managed);
  CHECK_EQ(device.free_bytes(), 32 * kMiB);
  CHECK_EQ(device.totals().device_bytes, 0u);
}

TEST(handles_of_the_host_share_its_limit_with_managed_memory) {
  VirtualMemory device(16 * kMiB, 0, UM_COUNTING_ORDERED, 16 * kMiB);
  const auto handle = device.create(10 * kMiB, false);
  CHECK_EQ(device.free_bytes(), 16 * kMiB);
  CHECK_EQ(device.totals().host_bytes, 10 * kMiB);
  CUdeviceptr address = 0;
  CHECK_EQ(device.driver.call.mem_alloc_managed(&address, 8 * kMiB, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_OUT_OF_MEMORY);
  unsigned char* managed = device.managed(6 * kMiB);
  const auto wanted = device.properties(false);
  VirtualMemory::Handle more = 0;
  CHECK_EQ(device.driver.call.mem_create(&more, kBlock, &wanted, 0), CUDA_ERROR_OUT_OF_MEMORY);
  device.free(managed);
  device.release(device.create(6 * kMiB, false));
  device.release(handle);
  CHECK_EQ(device.totals().host_bytes, 0u);
}

TEST(totals_and_tags_count_what_is_mapped) {
  VirtualMemory device(32 * kMiB);
  const auto address = device.reserve(8 * kBlock);
  device.hooks.tag(device.ordinal, address, 8 * kBlock, 3);
  const auto handle = device.create(3 * kBlock);
  CHECK_EQ(device.totals().device_bytes, 3 * kBlock);
  CHECK_EQ(device.totals().tag_bytes[3], 0u);
  device.map(address, 3 * kBlock, handle);
  CHECK_EQ(device.totals().device_bytes, 3 * kBlock);
  CHECK_EQ(device.totals().tag_bytes[3], 3 * kBlock);
  uint64_t on_device = 0, on_host = 0;
  device.hooks.residency(device.ordinal, address + kBlock, 4 * kBlock, &on_device, &on_host);
  CHECK_EQ(on_device, 2u);
  CHECK_EQ(on_host, 0u);
  device.unmap(address, 3 * kBlock);
  device.release(handle);
  CHECK_EQ(device.totals().tag_bytes[3], 0u);
  CHECK_EQ(device.totals().tag_peak_bytes[3], 3 * kBlock);
  CHECK_EQ(device.totals().device_peak_bytes, 3 * kBlock);
  device.hooks.reset_peaks(device.ordinal);
  CHECK_EQ(device.totals().device_peak_bytes, 0u);
  // Whoever follows the events knows where it was.
  int there = 0;
  for (const auto& event : device.events()) {
    there += event.change == um::driver::ResidencyChange::arrived;
    there -= event.change == um::driver::ResidencyChange::left;
    CHECK(there >= 0 && there <= 3);
  }
  CHECK_EQ(there, 0);
  device.free_reserved(address, 8 * kBlock);
}

TEST(what_a_driver_refuses) {
  VirtualMemory device(32 * kMiB);
  const auto& call = device.driver.call;
  constexpr CUresult kInvalid = CUDA_ERROR_INVALID_VALUE;
  CUdeviceptr address = 0;
  CHECK_EQ(call.mem_address_reserve(&address, kBlock + 4096, 0, 0, 0), kInvalid);
  CHECK_EQ(call.mem_address_reserve(&address, 0, 0, 0, 0), kInvalid);
  CHECK_EQ(call.mem_address_reserve(&address, kBlock, 3, 0, 0), kInvalid);
  CHECK_EQ(call.mem_address_reserve(&address, kBlock, 0, 0, 1), kInvalid);
  CHECK_EQ(call.mem_address_reserve(nullptr, kBlock, 0, 0, 0), kInvalid);
  CHECK_EQ(call.mem_address_reserve(&address, uint64_t{1} << 45, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQ(call.mem_address_reserve(&address, kBlock, kBlock, 0, 0), CUDA_SUCCESS);
  device.free_reserved(address, kBlock);

  VirtualMemory::Handle handle = 0;
  auto wanted = device.properties(true);
  const auto create = [&](uint64_t bytes) { return call.mem_create(&handle, bytes, &wanted, 0); };
  CHECK_EQ(create(kBlock - 1), kInvalid);
  CHECK_EQ(create(0), kInvalid);
  CHECK_EQ(call.mem_create(&handle, kBlock, nullptr, 0), kInvalid);
  CHECK_EQ(call.mem_create(&handle, kBlock, &wanted, 1), kInvalid);
  wanted.location.id = device.ordinal + 1;
  CHECK_EQ(create(kBlock), CUDA_ERROR_INVALID_DEVICE);
  wanted.location = {CU_MEM_LOCATION_TYPE_HOST, 0};
  CHECK_EQ(create(kBlock), kInvalid);
  wanted = device.properties(true);
  wanted.type = CUmemAllocationType{};
  CHECK_EQ(create(kBlock), kInvalid);
  wanted = device.properties(true);
  wanted.requestedHandleTypes = CUmemAllocationHandleType{1};
  CHECK_EQ(create(kBlock), CUDA_ERROR_NOT_SUPPORTED);
  wanted = device.properties(true);
  size_t granularity = 0;
  CHECK_EQ(call.mem_get_allocation_granularity(&granularity, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM), CUDA_SUCCESS);
  CHECK_EQ(granularity, kBlock);

  const auto range = device.reserve(6 * kBlock), neighbour = device.reserve(2 * kBlock);
  handle = device.create(3 * kBlock);
  const auto map = [&](CUdeviceptr at, uint64_t bytes) { return call.mem_map(at, bytes, 0, handle, 0); };
  CHECK_EQ(map(range + 4096, kBlock), kInvalid);
  CHECK_EQ(map(range, kBlock / 2), kInvalid);
  CHECK_EQ(map(range, 4 * kBlock), kInvalid);  // more than there is
  CHECK_EQ(neighbour, range + 6 * kBlock);
  CHECK_EQ(map(range + 5 * kBlock, 2 * kBlock), kInvalid);  // into another reservation
  CHECK_EQ(map(neighbour + 2 * kBlock, kBlock), kInvalid);  // into none
  CHECK_EQ(call.mem_map(range, kBlock, kBlock, handle, 0), kInvalid);
  CHECK_EQ(call.mem_map(range, kBlock, 0, handle, 1), kInvalid);
  CHECK_EQ(call.mem_map(range, kBlock, 0, handle + 1, 0), kInvalid);
  device.map(range, 3 * kBlock, handle);
  CHECK_EQ(map(range + 2 * kBlock, kBlock), kInvalid);           // overlaps
  CHECK_EQ(call.mem_address_free(range, 6 * kBlock), kInvalid);  // mapped
  CHECK_EQ(call.mem_address_free(neighbour, kBlock), kInvalid);  // a part
  CHECK_EQ(call.mem_free(range), kInvalid);
  const auto access = device.access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  const auto allow = [&](CUdeviceptr at, uint64_t bytes) { return call.mem_set_access(at, bytes, &access, 1); };
  CHECK_EQ(allow(range, 4 * kBlock), kInvalid);  // not all of it is mapped
  CHECK_EQ(allow(range, kBlock), kInvalid);      // a part of a mapping
  CHECK_EQ(allow(neighbour, kBlock), kInvalid);
  CHECK_EQ(call.mem_set_access(range, 3 * kBlock, nullptr, 0), kInvalid);
  auto elsewhere = access;
  elsewhere.location.id = device.ordinal + 1;
  CHECK_EQ(call.mem_set_access(range, 3 * kBlock, &elsewhere, 1), CUDA_ERROR_INVALID_DEVICE);
  auto odd = access;
  odd.flags = CUmemAccess_flags{2};
  CHECK_EQ(call.mem_set_access(range, 3 * kBlock, &odd, 1), kInvalid);
  CHECK_EQ(call.mem_unmap(range, kBlock), kInvalid);
  CHECK_EQ(call.mem_unmap(range + kBlock, 2 * kBlock), kInvalid);
  CHECK_EQ(call.mem_unmap(range, 4 * kBlock), kInvalid);
  CHECK_EQ(call.mem_unmap(neighbour, kBlock), kInvalid);
  device.release(handle);
  CHECK_EQ(call.mem_release(handle), kInvalid);
  CHECK_EQ(map(range + 3 * kBlock, kBlock), kInvalid);  // released, though mapped
  device.unmap(range, 3 * kBlock);
  CHECK_EQ(call.mem_unmap(range, 3 * kBlock), kInvalid);
  CHECK_EQ(call.mem_release(handle), kInvalid);
  device.free_reserved(range, 6 * kBlock);
  CHECK_EQ(call.mem_address_free(range, 6 * kBlock), kInvalid);
  device.free_reserved(neighbour, 2 * kBlock);
  // Other memory is none of this.
  unsigned char* managed = device.managed(kBlock);
  const auto theirs = EmulatedDevice::as_pointer(managed);
  handle = device.create(kBlock);
  CHECK_EQ(map(theirs, kBlock), kInvalid);
  CHECK_EQ(allow(theirs, kBlock), kInvalid);
  CHECK_EQ(call.mem_unmap(theirs, kBlock), kInvalid);
  CHECK_EQ(call.mem_address_free(theirs, kBlock), kInvalid);
  CHECK_EQ(call.mem_map(0, kBlock, 0, handle, 0), kInvalid);
  device.release(handle);
  device.free(managed);
}

TEST(each_function_can_be_made_to_fail_and_then_changes_nothing) {
  VirtualMemory device(16 * kMiB);
  const auto& call = device.driver.call;
  const auto fail = [&](const char* function) { CHECK(device.hooks.fail(device.ordinal, function, 1)); };
  CUdeviceptr address = 0;
  VirtualMemory::Handle handle = 0;
  const auto wanted = device.properties(true);
  const auto access = device.access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  fail("cuMemAddressReserve");
  CHECK_EQ(call.mem_address_reserve(&address, kBlock, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
  address = device.reserve(kBlock);
  fail("cuMemCreate");
  CHECK_EQ(call.mem_create(&handle, kBlock, &wanted, 0), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQ(device.free_bytes(), 16 * kMiB);
  handle = device.create(kBlock);
  fail("cuMemMap");
  CHECK_EQ(call.mem_map(address, kBlock, 0, handle, 0), CUDA_ERROR_OUT_OF_MEMORY);
  device.map(address, kBlock, handle);
  fail("cuMemSetAccess");
  CHECK_EQ(call.mem_set_access(address, kBlock, &access, 1), CUDA_ERROR_UNKNOWN);
  device.allow(address, kBlock, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  fail("cuMemUnmap");
  CHECK_EQ(call.mem_unmap(address, kBlock), CUDA_ERROR_UNKNOWN);
  test::write(address, kBlock, 1);
  device.unmap(address, kBlock);
  fail("cuMemRelease");
  CHECK_EQ(call.mem_release(handle), CUDA_ERROR_UNKNOWN);
  device.release(handle);
  fail("cuMemAddressFree");
  CHECK_EQ(call.mem_address_free(address, kBlock), CUDA_ERROR_UNKNOWN);
  device.free_reserved(address, kBlock);
  size_t granularity = 0;
  fail("cuMemGetAllocationGranularity");
  CHECK_EQ(call.mem_get_allocation_granularity(&granularity, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
           CUDA_ERROR_UNKNOWN);
  CHECK_EQ(device.hooks.calls(device.ordinal, "cuMemUnmap"), 2u);
}

TEST(a_device_that_closes_with_mappings_leaves_a_clean_range_to_the_next) {
  CUdeviceptr address = 0;
  {
    VirtualMemory device(16 * kMiB);
    address = device.reserve(3 * kBlock);
    const auto handle = device.create(kBlock);
    for (const uint64_t offset : {uint64_t{0}, 2 * kBlock}) {
      device.map(address + offset, kBlock, handle);
      device.allow(address + offset, kBlock, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    }
    test::write(address, kBlock, 1);
  }
  EmulatedDevice device(16 * kMiB);
  unsigned char* managed = device.managed(3 * kBlock);
  CHECK_EQ(EmulatedDevice::as_pointer(managed), address);
  for (uint64_t i = 0; i < 3 * kBlock; i += 4096) CHECK_EQ(+managed[i], 0);
  device.free(managed);
}

// Every mapping of a block whose neighbours are unlike it is one of the process's, of which vm.max_map_count allows
// 65,530 as a rule: 128 GiB in mappings of 2 MiB. Where more are allowed than the address space has blocks, nothing
// can be seen of it.
TEST(the_limit_of_mappings_is_an_error_that_says_so) {
  std::FILE* file = std::fopen("/proc/sys/vm/max_map_count", "r");
  long limit = 0;
  const bool known = file != nullptr && std::fscanf(file, "%ld", &limit) == 1;
  if (file != nullptr) std::fclose(file);
  if (!known || static_cast<uint64_t>(limit) * kBlock > uint64_t{128} << 30) return;
  VirtualMemory device(16 * kMiB);
  const auto& call = device.driver.call;
  CUdeviceptr address = 0;
  const uint64_t blocks = static_cast<uint64_t>(limit);
  if (call.mem_address_reserve(&address, blocks * kBlock, 0, 0, 0) != CUDA_SUCCESS) return;  // under ThreadSanitizer
  const auto handle = device.create(kBlock);
  const auto access = device.access(CU_MEM_ACCESS_FLAGS_PROT_READ);
  CUresult result = CUDA_SUCCESS;
  uint64_t mapped = 0;
  for (; mapped < blocks && result == CUDA_SUCCESS; ++mapped) {
    device.map(address + mapped * kBlock, kBlock, handle);
    result = call.mem_set_access(address + mapped * kBlock, kBlock, &access, 1);
  }
  const char* message = nullptr;
  CHECK_EQ(result, CUDA_ERROR_OPERATING_SYSTEM);
  CHECK_EQ(call.get_error_string(result, &message), CUDA_SUCCESS);
  CHECK(std::string(message).find("vm.max_map_count") != std::string::npos);
  for (uint64_t block = 0; block < 10; ++block) device.unmap(address + block * kBlock, kBlock);
  device.allow(address + (mapped - 1) * kBlock, kBlock, CU_MEM_ACCESS_FLAGS_PROT_READ);
  device.unmap(address + 10 * kBlock, (mapped - 10) * kBlock);
  device.release(handle);
  device.free_reserved(address, blocks * kBlock);
}
