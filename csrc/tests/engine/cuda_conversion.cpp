// Live allocations that change their kind of memory on a CUDA driver, whose kernels run in streams.
#include "cuda_fixture.h"

using test::Cuda;
using test::kChunk;
using test::Moving;
using test::Stream;

namespace {

struct Kinds : Cuda {
  Kinds() {
    CHECK_OK(set_chunks(8));
    CHECK_OK(um_owners_remember(handle, UM_OWNERS_CONVERTED_IN_OPS));
  }
  um_converted convert(um_memory memory) const {
    const um_conversion wanted{static_cast<uint32_t>(memory), {}, {~0u, ~0u, ~0u}};
    um_converted out{};
    CHECK_OK(um_convert(handle, &wanted, &out));
    return out;
  }
};

}  // namespace

TEST(kernels_find_their_bytes_in_each_kind_of_memory) {
  Kinds device;
  const Stream side;
  const Moving large = device.allocate(2 * kChunk, test::kParameter), small = device.allocate(700, test::kParameter);
  device.fill(side, large, 2 * kChunk, 3);
  device.fill(side, small, 700, 4);
  for (const um_memory kind : {UM_MEMORY_CHUNKED, UM_MEMORY_DEVICE, UM_MEMORY_CHUNKED, UM_MEMORY_MANAGED}) {
    CHECK_EQ(device.convert(kind).moved, uint64_t{2});
    CHECK_EQ(Cuda::at(large).memory, static_cast<uint32_t>(kind));
    CHECK_EQ(Cuda::at(small).memory, static_cast<uint32_t>(kind));
    device.expect(side, large, 2 * kChunk, 3);
    device.expect(side, small, 700, 4);
    device.check_kernels();
  }
}

TEST(what_others_have_the_address_of_stays) {
  Kinds device;
  const Moving block = device.allocate(kChunk, test::kParameter);
  device.fill(nullptr, block, kChunk, 3);
  CHECK_OK(um_export_lasting(block));
  CHECK_EQ(Cuda::at(block).exports, 1u);
  CHECK_EQ(device.convert(UM_MEMORY_CHUNKED).stayed, uint64_t{1});
  device.expect(nullptr, block, kChunk, 3);
  device.check_kernels();
}
