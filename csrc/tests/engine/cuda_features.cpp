// What a CUDA device lacks: said in words, refused where it is needed, done without where it is not. One process stands
// for one driver, so the versions are those that the driver tells; what it is found to lack are its attributes.
#include "cuda_fixture.h"
#include "driver/libcuda.h"
#include "memory/features.h"
#include "memory/managed_cap.h"

using test::Cuda;
using test::kChunk;
using test::kChunked;
using test::kMiB;
using test::kPage;
using test::kPlain;
using test::read;
using test::write;
using namespace um::driver;  // NOLINT(google-build-using-namespace): attributes and errors by their names

namespace {

constexpr char kMigration[] = "advice, prefetches and a budget", kChunks[] = "explicit swapping",
               kManaged[] = "managed memory", kDiscard[] = "discard of dead ranges";

// A device that has this attribute; everything is as it was when it goes.
struct Lacking : Cuda {
  static um_device* open(CUdevice_attribute attribute, int value) {
    emulated_libcuda_attribute(static_cast<int>(attribute), value);
    return test::opened_cuda();
  }
  explicit Lacking(CUdevice_attribute attribute, int value = 0) : Cuda(open(attribute, value)) {}
};

bool says(const std::string& text) { return std::string(um_last_error()).find(text) != std::string::npos; }

// Blocks that do not all fit, written and read in turn.
void swap_some(const Cuda& cuda) {
  auto& device = const_cast<Cuda&>(cuda);
  std::vector<test::Moving> blocks;
  for (unsigned char i = 1; i < 6; ++i) {
    blocks.push_back(device.allocate(kChunk, kChunked));
    device.fill(nullptr, blocks.back(), kChunk, i);
  }
  for (unsigned char i = 1; i < 6; ++i) device.expect(nullptr, blocks[i - size_t{1}], kChunk, i);
  device.check_kernels();
}

// As a driver of that version: the table that the provider makes of it, and the reasons in it.
std::unique_ptr<const Libcuda> loaded(int version, const char* lacking = nullptr) {
  emulated_libcuda_version(version);
  emulated_libcuda_lacks(lacking);
  std::string reason;
  auto libcuda = load_libcuda("libcuda.so.1", &reason);
  emulated_libcuda_reset();
  CHECK_EQ(reason, "");
  return libcuda;
}

um::Backend backend_of(const Libcuda& libcuda) {
  um::Backend backend;
  backend.driver = &libcuda.driver;
  backend.name = "the device";
  backend.discards = true;
  backend.managed_memory = backend.concurrent_managed = backend.virtual_memory = 1;
  return backend;
}

}  // namespace

TEST(a_whole_device_lacks_nothing) {
  Cuda device;
  CHECK(device.why_not(kDiscard).find("before tools/gpu_check has tried") != std::string::npos);
  CHECK_OK(um_discard_set(device, 1));
  for (const char* feature : {kManaged, kMigration, kDiscard, kChunks}) {
    // This driver tells that it is CUDA 13.
    CHECK_EQ(std::string(feature) + ": " + device.why_not(feature), std::string(feature) + ": ");
  }
  CHECK(um_device_feature(device, 4, nullptr) == nullptr);
  CHECK(um_device_feature(nullptr, 0, nullptr) == nullptr);
}

// Windows, WSL and some virtual GPUs.
TEST(without_concurrent_access_memory_is_managed_and_neither_advised_nor_moved) {
  Lacking device(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS);
  CHECK(device.why_not(kMigration).find("no concurrent managed access (attribute 89)") != std::string::npos);
  CHECK_EQ(device.why_not(kManaged), "");
  CHECK_FAILS(UM_UNSUPPORTED, um_budget_set(device, 32 * kMiB));
  CHECK(says("no budget can be kept") && says("attribute 89"));
  emulated_libcuda_fails("cuMemAdvise", CUDA_ERROR_INVALID_DEVICE, 1, 100);
  for (uint32_t advice = 0; advice < UM_ADVICE_COUNT; ++advice) {
    unsigned char* data = device.allocate(3 * kPage, test::advised(static_cast<um_advice>(advice)));
    device.op({write(data, 3 * kPage)}, [&] { std::memset(data, 5, 3 * kPage); });
    device.op({read(data, 3 * kPage)}, [&] { CHECK(test::holds(data, 5, 3 * kPage)); });
    CHECK_FAILS(UM_UNSUPPORTED, um_prefetch(data, kPage, 1, nullptr));
  }
  CHECK_OK(device.set_chunks(3));  // those are moved by copies
  swap_some(device);
}

TEST(without_managed_memory_there_is_plain_memory_and_chunks) {
  Lacking device(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY);
  CHECK_EQ(device.why_not(kManaged), "umadvise emulated device has no managed memory (attribute 83)");
  CHECK_EQ(device.why_not(kMigration), device.why_not(kManaged));
  void* out = nullptr;
  CHECK_FAILS(UM_UNSUPPORTED, um_allocate(device, kPage, &test::kIntermediate, nullptr, &out));
  CHECK(says("attribute 83") && says("policy \"resident\" or \"swap\""));
  unsigned char* plain = device.allocate(kPage, kPlain);
  device.fill(nullptr, plain, kPage, 3);
  CHECK_OK(device.set_chunks(3));
  swap_some(device);
}

TEST(without_virtual_memory_there_are_no_chunks) {
  Lacking device(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
  CHECK(device.why_not(kChunks).find("no management of virtual memory (attribute 102)") != std::string::npos);
  CHECK_FAILS(UM_UNSUPPORTED, device.set_chunks(3));
  CHECK(says("explicit swapping is not possible") && says("attribute 102"));
  CHECK_EQ(device.why_not(kMigration), "");
  CHECK_OK(um_budget_set(device, 32 * kMiB));
}

// Jetson, DGX Spark.
TEST(an_integrated_device_has_nothing_to_swap_to_and_one_memory_not_two) {
  Lacking device(CU_DEVICE_ATTRIBUTE_INTEGRATED, 1);
  CHECK(device.why_not(kChunks).find("is integrated (attribute 18)") != std::string::npos);
  CHECK_FAILS(UM_UNSUPPORTED, device.set_chunks(3));
  CHECK(says("nothing is gained"));
  unsigned char* data = device.allocate(kPage);
  device.fill(nullptr, data, kPage, 1);
  device.check_kernels();
  void* out = nullptr;
  CHECK_FAILS(UM_OUT_OF_HOST_MEMORY, um_allocate(device, uint64_t{1} << 39, &test::kIntermediate, nullptr, &out));
  CHECK(says("and 0 bytes free on the device"));
}

// ---- memory of the host --------------------------------------------------------------------------------------------

// Page-locked memory is the device's too.
TEST(a_kernel_that_no_op_announces_finds_what_left) {
  Cuda device;
  CHECK_OK(device.set_chunks(3));
  test::Moving block = device.allocate(2 * kChunk, kChunked);
  device.fill(nullptr, block, 2 * kChunk, 5);
  for (unsigned char i = 1; i < 6; ++i) device.fill(nullptr, device.allocate(kChunk, kChunked), kChunk, i);
  device.synchronize();
  CHECK(device.swaps().swap_outs > 0);
  unsigned char* const at = block;
  device.launch(nullptr, [=] { Cuda::wrong += !test::holds(at, 5, 2 * kChunk); });
  device.launch(nullptr, [=] { at[7] = 6; });
  device.check_kernels();
  device.op({read(block, 2 * kChunk)}, [&] { CHECK(block[7] == 6 && block[8] == 5); });
}

// Nobody asks for memory of the host unasked: some drivers crash there.
TEST(a_driver_that_crashes_over_memory_of_the_host_is_not_asked_for_it) {
  emulated_libcuda_host_memory_crashes(1);
  Cuda device;
  CHECK_OK(device.set_chunks(3));
  swap_some(device);
}

// ---- page-locked memory --------------------------------------------------------------------------------------------

// Each call takes a GPU's driver milliseconds, and stops the device.
TEST(page_locked_memory_comes_in_slabs_as_large_as_the_budget) {
  Cuda device;
  CHECK_OK(device.set_chunks(2, 6 * kChunk));
  emulated_libcuda_fails("cuMemHostAlloc", CUDA_ERROR_OUT_OF_MEMORY, 2, ~uint64_t{0});  // there is one call
  std::vector<test::Moving> blocks;
  for (unsigned char i = 1; i < 8; ++i) {
    blocks.push_back(device.allocate(kChunk, kChunked));
    device.fill(nullptr, blocks.back(), kChunk, i);
  }
  device.check_kernels();
  CHECK_EQ(device.swaps().host_pool_bytes, 6 * kChunk);
  for (unsigned char i = 1; i < 8; ++i) device.free(blocks[i - size_t{1}]);
  CHECK_OK(device.set_chunks(2, kChunk));
  CHECK_EQ(device.swaps().host_pool_bytes, uint64_t{0});  // a slab goes as a whole
}

TEST(page_locked_memory_comes_in_smaller_slabs_where_the_driver_has_no_more) {
  Cuda device;
  CHECK_OK(device.set_chunks(2, 8 * kChunk));
  emulated_libcuda_fails("cuMemHostAlloc", CUDA_ERROR_OUT_OF_MEMORY, 1, 2);
  swap_some(device);
  CHECK(device.swaps().host_pool_bytes >= 3 * kChunk && device.swaps().host_pool_bytes <= 8 * kChunk);
}

TEST(chunks_keep_what_they_began_with) {
  Cuda device;
  CHECK_OK(device.set_chunks(3));
  CHECK_OK(device.set_chunks(5));
  um_chunk_options options{5 * kChunk, 0, kChunk, UM_SMALL_LEAVE, 0};
  CHECK_FAILS(UM_BAD_STATE, um_chunks_set(device, &options));
  options = {};
  Cuda other;
  options.budget_bytes = 100 * kMiB;
  CHECK_OK(um_chunks_set(other, &options));
  CHECK_EQ(other.swaps().chunk_bytes, 2 * kMiB);
}

// ---- how much managed memory ---------------------------------------------------------------------------------------

// What is free does not sink while nobody touches what was promised.
TEST(managed_memory_in_small_pieces_stops_at_the_cap) {
  um_most_managed_set(96 * kMiB);
  {
    Cuda one, two(test::opened_cuda());
    uint64_t pieces = 0;
    void* out = nullptr;
    um_status status = UM_OK;
    for (; pieces < 1000; ++pieces) {
      Cuda& device = pieces % 2 == 0 ? one : two;
      status = um_allocate(device, kPage, &test::kIntermediate, nullptr, &out);
      if (status != UM_OK) break;
      device.keep(out);
    }
    CHECK_EQ(status, UM_OUT_OF_HOST_MEMORY);
    CHECK(says("most_managed") && says("may still have"));
    CHECK(one.memory().reserved_bytes + two.memory().reserved_bytes <= 96 * kMiB);
    CHECK(pieces >= 32);  // arenas of one device may have room left
  }
  Cuda device;  // what was given back is there again
  unsigned char* data = device.allocate(60 * kMiB);
  data[0] = 1;
  um_most_managed_set(0);
}

TEST(managed_memory_is_never_more_than_was_free_at_the_beginning) {
  const uint64_t held = 1000 - um::managed_cap::left(1000);
  CHECK_EQ(held, uint64_t{0});
  um::managed_cap::most_bytes = 600;
  CHECK_EQ(um::managed_cap::left(500), uint64_t{500});
  um::managed_cap::held_bytes += 450;
  CHECK_EQ(um::managed_cap::left(1000), uint64_t{150});
  CHECK_EQ(um::managed_cap::left(400), uint64_t{0});
  um::managed_cap::held_bytes -= 450;
  um::managed_cap::most_bytes = 0;
  CHECK_EQ(um::managed_cap::left(1000), uint64_t{1000});
}

// ---- opening ------------------------------------------------------------------------------------------------------

TEST(each_question_at_opening_may_fail_and_leaves_nothing) {
  const char* questions[] = {"cuDeviceGetCount",        "cuDeviceGet",        "cuDeviceGetName",
                             "cuDeviceTotalMem",        "cuDriverGetVersion", "cuDeviceGetAttribute",
                             "cuDevicePrimaryCtxRetain"};
  CHECK(Cuda().handle != nullptr);  // the driver is loaded
  for (const char* each : questions) {
    emulated_libcuda_fails(each, CUDA_ERROR_NOT_PERMITTED, 1, 1);
    um_device* device = nullptr;
    CHECK_FAILS(UM_DRIVER_ERROR, um_device_open_cuda(0, &device));
    CHECK(says("CUDA_ERROR_NOT_PERMITTED (800): not permitted"));
    CHECK(device == nullptr);
  }
  emulated_libcuda_fails("cuDevicePrimaryCtxRetain", CUDA_ERROR_OUT_OF_MEMORY, 1, 1);
  um_device* device = nullptr;
  CHECK_FAILS(UM_OUT_OF_DEVICE_MEMORY, um_device_open_cuda(0, &device));
  emulated_libcuda_reset();
}

TEST(a_context_that_cannot_be_made_current_is_an_error_and_changes_nothing) {
  Cuda device;
  unsigned char* data = device.allocate(kPage, kPlain);
  CUcontext before = nullptr, after = nullptr;
  CHECK_EQ(test::driver().ctx_get_current(&before), CUDA_SUCCESS);
  std::vector<unsigned char> bytes(kPage);
  for (const char* each : {"cuCtxGetCurrent", "cuCtxSetCurrent"}) {
    emulated_libcuda_fails(each, CUDA_ERROR_INVALID_CONTEXT, 1, 1);
    CHECK_FAILS(UM_DRIVER_ERROR, um_copy_to_host(bytes.data(), data, kPage));
    CHECK(says("making the device's context current"));
    CHECK_EQ(test::driver().ctx_get_current(&after), CUDA_SUCCESS);
    CHECK(before == after);
  }
}

// ---- versions -----------------------------------------------------------------------------------------------------

TEST(each_version_of_the_driver_has_what_its_headers_name) {
  for (const int version : {12020, 12080, 13000, 13020}) {
    const auto libcuda = loaded(version);
    CHECK(libcuda != nullptr);
    const um::Backend backend = backend_of(*libcuda);
    for (const um::Feature feature : {um::Feature::managed_memory, um::Feature::migration, um::Feature::chunks}) {
      CHECK_EQ(um::why_not(backend, feature), "");
    }
    const std::string expected = version >= 13000
                                     ? ""
                                     : "cuMemDiscardBatchAsync needs CUDA 13.0; this driver supports CUDA " +
                                           std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
    CHECK_EQ(um::why_not(backend, um::Feature::discard), expected);
  }
}

TEST(a_function_that_is_missing_is_named_by_what_needs_it) {
  const struct {
    const char* symbol;
    um::Feature feature;
  } missing[] = {{"cuMemAllocManaged", um::Feature::managed_memory},
                 {"cuMemAllocManaged", um::Feature::discard},
                 {"cuMemAdvise", um::Feature::migration},
                 {"cuMemPrefetchAsync", um::Feature::migration},
                 {"cuMemMap", um::Feature::chunks},
                 {"cuMemCreate", um::Feature::chunks},
                 {"cuMemDiscardBatchAsync", um::Feature::discard}};
  for (const auto& each : missing) {
    const auto libcuda = loaded(13000, each.symbol);
    CHECK(libcuda != nullptr);
    CHECK_EQ(um::why_not(backend_of(*libcuda), each.feature),
             std::string(each.symbol) + " is not in this driver, which supports CUDA 13.0");
  }
}
