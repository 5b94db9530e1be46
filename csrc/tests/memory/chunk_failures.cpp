// Any driver call of chunked memory may fail: what was there before is still right, nothing is lost, and it works on.
#include <vector>

#include "chunked_fixture.h"

using test::data;
using test::fill;
using test::filled;
using test::kChunk;
using test::kMiB;
using test::Rig;
using test::status_of;
using um::Block;
using um::ChunkedMemory;
using um::Fences;

namespace {

// Work that goes on after whatever fails. Blocks that are on the device keep their contents, those on the host theirs.
class Session {
 public:
  explicit Session(Rig& rig, bool host_mapped) : rig_(rig), host_mapped_(host_mapped) {}
  ~Session() { end(); }

  void run() {
    for (const uint64_t bytes : {2 * kChunk, kChunk + 5, 3 * kChunk, uint64_t{700}}) add(bytes);
    for (size_t i = 0; i < entries_.size(); ++i) out(i);
    for (size_t i = entries_.size(); i-- > 0;) in(i);
    remove(0);
    add(3 * kChunk);
    attempt([&] { rig_.memory->set_budget(4 * kChunk); });
    for (size_t i = 0; i < entries_.size(); ++i) out(i);
    in(0);
    attempt([&] { rig_.memory->set_budget(6 * kChunk); });
    in(1);
    verify();
    static_cast<void>(rig_.allocations->trim());
  }

  void verify() const {
    for (const Entry& entry : entries_) {
      if (!entry.there) continue;
      CHECK(filled(data(entry.block), entry.bytes, entry.seed));
    }
    const uint64_t used = rig_.memory->large().now + rig_.memory->pinned().now;
    CHECK(rig_.memory->created() >= used);
    CHECK_EQ(rig_.memory->created() * kChunk, rig_.device_bytes());
    CHECK_EQ(rig_.allocations->statistics.reserved_bytes.now, rig_.device_bytes());
  }

  void end() {
    while (!entries_.empty()) remove(0);
  }

 private:
  struct Entry {
    Block* block;
    uint64_t bytes, seed;
    bool there;
    um::HostRange* host;
  };

  bool attempt(const std::function<void()>& work) const { return status_of(work) == UM_OK; }

  void add(uint64_t bytes) {
    Block* block = nullptr;
    if (!attempt([&] { block = rig_.allocate(bytes); })) return;
    entries_.push_back({block, bytes, ++seeds_, bytes <= kChunk / 2, nullptr});
    Entry& entry = entries_.back();
    if (!entry.there) attempt([&] { entry.there = rig_.memory->back(*block, nullptr); });
    if (entry.there) fill(data(block), bytes, entry.seed);
    verify();
  }

  void out(size_t index) {
    if (index >= entries_.size()) return;
    Entry& entry = entries_[index];
    if (!entry.there || entry.bytes <= kChunk / 2) return;
    if (!attempt([&] { entry.host = rig_.memory->take_host(*entry.block); }) || entry.host == nullptr) return;
    const bool copied = attempt([&] { rig_.memory->copy_out(*entry.block, entry.host, rig_.stream); });
    while (rig_.backend.call().stream_synchronize(rig_.stream) != um::driver::CUDA_SUCCESS) {
    }
    if (!copied) {
      rig_.memory->give_host(entry.host, 0);
      entry.host = nullptr;
      return;
    }
    rig_.memory->strip(*entry.block);
    entry.there = false;
    if (host_mapped_) attempt([&] { rig_.memory->map_host(*entry.block, entry.host); });
    verify();
  }

  void in(size_t index) {
    if (index >= entries_.size()) return;
    Entry& entry = entries_[index];
    if (entry.host == nullptr) return;
    if (host_mapped_ && !attempt([&] { rig_.memory->unmap_host(*entry.block); })) return;
    bool backed = false;
    attempt([&] { backed = rig_.memory->back(*entry.block, nullptr); });
    if (!backed) return;
    const bool copied = attempt([&] { rig_.memory->copy_in(*entry.block, entry.host, rig_.stream); });
    while (rig_.backend.call().stream_synchronize(rig_.stream) != um::driver::CUDA_SUCCESS) {
    }
    if (!copied) return rig_.memory->strip(*entry.block);
    entry.there = true;
    rig_.memory->give_host(entry.host, 0);
    entry.host = nullptr;
    verify();
  }

  void remove(size_t index) {
    if (index >= entries_.size()) return;
    const Entry entry = entries_[index];
    entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(index));
    Fences::Fence fence = 0;
    attempt([&] { fence = rig_.fences->record(&rig_.stream, 1); });
    if (entry.host != nullptr) rig_.memory->give_host(entry.host, fence);
    rig_.free(entry.block, fence);
    rig_.fences->release(fence);
  }

  Rig& rig_;
  const bool host_mapped_;
  std::vector<Entry> entries_;
  uint64_t seeds_ = 0;
};

// Runs the session once for each of its driver calls, with that call made to fail.
void fail_each_call(bool host_mapped) {
  uint64_t calls = 1;
  for (uint64_t nth = 0; nth <= calls; ++nth) {
    Rig rig(6, {0, 0, 0, host_mapped, 0});
    const uint64_t before = rig.calls();
    rig.fail(nullptr, nth);  // 0: none
    {
      Session session(rig, host_mapped);
      session.run();
      if (nth == 0) calls = rig.calls() - before;
      rig.fail(nullptr, 0);
      session.verify();
    }
    CHECK(rig.allocations->trim());
    CHECK_EQ(rig.fences->live(), uint64_t{0});
    CHECK_EQ(rig.device_bytes(), uint64_t{0});
    CHECK_EQ(rig.memory->created() + rig.memory->host_pool(), uint64_t{0});
    rig.backed(6);  // and it works on
  }
  CHECK(calls > 50);
}

}  // namespace

TEST(any_driver_call_may_fail) { fail_each_call(false); }

TEST(any_driver_call_may_fail_with_mapped_host_memory) { fail_each_call(true); }

TEST(construction_may_fail) {
  Rig rig(1);
  rig.fail("cuMemGetAllocationGranularity", 1);
  CHECK(status_of([&] { ChunkedMemory made(rig.backend, {8 * kMiB, 0, 0, 1}, *rig.fences); }) != UM_OK);
}
