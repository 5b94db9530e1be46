// A write to what the host has unchanged is fatal and named when the driver does not let it through. Each case runs in
// a child of a process that has no device.
#include "child_process.h"
#include "swapping_fixture.h"

using test::Device;
using test::kChunk;
using test::kChunked;
using test::kMiB;
using test::write;

namespace {

// A parameter of two chunks comes back from the host, and the driver refuses what would make it accessible.
struct Arriving : Device {
  Arriving() : Device(64 * kMiB) {
    const um_chunk_options options{2 * kChunk, 0, kChunk, 0, 0};
    CHECK_OK(um_chunks_set(handle, &options));
    parameter = allocate(2 * kChunk, kChunked);
    other = allocate(2 * kChunk, kChunked);
    CHECK_OK(um_allocation_label(parameter, UM_ROLE_PARAMETER, um_intern("layers.3.weight")));
    for (const test::Moving& block : {parameter, other})
      op({write(block, 2 * kChunk)}, [&] { std::memset(block, 1, 2 * kChunk); });
    free(other);
    CHECK_OK(um_prefetch(parameter, 1, 0, nullptr));
  }
  void touch_it() {
    CHECK_OK(um_emulated_fail(handle, "cuMemSetAccess", 1));
    ++parameter[kChunk + 3];
  }
  test::Moving parameter, other;
};

std::string last_words(void (*touch)(Arriving& device)) {
  std::string said;
  CHECK(test::died_of_segv(test::in_child(
      [&] {
        test::default_handler();
        Arriving device;
        touch(device);
      },
      &said)));
  return said;
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

const std::string kWhose = ", byte 2097155 of a parameter layers.3.weight of 4194304 bytes, ";

}  // namespace

TEST(outside_of_ops) {
  const std::string said = last_words([](Arriving& device) { device.touch_it(); });
  CHECK(ends_with(said, kWhose + "outside of ops\n"));
}

TEST(in_an_op_that_did_not_name_it) {
  const std::string said = last_words([](Arriving& device) {
    CHECK_OK(um_step_set(device.handle, 4));
    device.op({}, [&] { device.touch_it(); }, "aten::forgetful");
  });
  CHECK(ends_with(said, kWhose + "in aten::forgetful of module, step 4, op 1\n"));
}
