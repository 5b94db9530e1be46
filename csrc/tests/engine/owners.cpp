// Who shows allocations' addresses: the functions that the process sets, and when they are called.
#include "engine/owners.h"

#include <utility>
#include <vector>

#include "engine_fixture.h"
#include "memory/address_map.h"

using namespace test;
namespace owners = um::owners;

namespace {

// Owners that only count, and in settling let go of memory of a device.
struct Fake {
  int remembered = 0, repointed = 0, forgotten = 0, dropped = 0;
  std::vector<void*> let_go;  // freed by the next settling
};
Fake fake;

void* remember(void* storage, const void*) {
  ++fake.remembered;
  return storage;
}
int32_t repoint(void* owner, const void* from, void* to) {
  ++fake.repointed;
  void*& shown = *static_cast<void**>(owner);
  if (shown != from) return 0;
  shown = to;
  return 1;
}
void forget(void*) { ++fake.forgotten; }
void drop_references() {
  ++fake.dropped;
  for (void* each : std::exchange(fake.let_go, {})) CHECK_EQ(um_free(each), 1);
}
constexpr um_owner_functions kFunctions{remember, repoint, forget, drop_references};

void set_fake() {
  fake = {};
  um_owners_set(&kFunctions);
}

// One operand, asked for with the device's lock held.
struct Gathered {
  void* shown;
  um_access access;
  int calls;
};
void gather(void* context, const um_access** accesses, uint32_t* count) {
  auto& gathered = *static_cast<Gathered*>(context);
  ++gathered.calls;
  gathered.access = read(gathered.shown, kPage);
  *accesses = &gathered.access;
  *count = 1;
}
// The same, and a move, as whoever makes room for it begins one.
void gather_and_move(void* context, const um_access** accesses, uint32_t* count) {
  gather(context, accesses, count);
  void* const owner = um::process_owners().remember(&fake.let_go, 0);
  um::process_owners().forget(owner);
  CHECK_EQ(fake.dropped, 0);
}

}  // namespace

TEST(nobody_owns_anything_before_the_functions_are_set) {
  int storage = 0;
  std::mutex mutex;
  const owners::Lock lock(mutex);
  CHECK_EQ(um::process_owners().remember(&storage, 0), static_cast<void*>(nullptr));
}

TEST(owners_are_asked_under_the_lock_and_drop_references_once_after_it) {
  set_fake();
  int first = 0, second = 0;
  void* shown = &first;
  std::mutex mutex;
  {
    const owners::Lock lock(mutex);
    CHECK_EQ(um::process_owners().remember(nullptr, um::address_of(&first)), static_cast<void*>(nullptr));
    CHECK_EQ(fake.remembered, 0);
    void* const owner = um::process_owners().remember(&shown, um::address_of(&first));
    CHECK_EQ(owner, static_cast<void*>(&shown));
    CHECK(um::process_owners().repoint(owner, um::address_of(&first), um::address_of(&second)));
    CHECK_EQ(shown, static_cast<void*>(&second));
    CHECK(!um::process_owners().repoint(owner, um::address_of(&first), um::address_of(&second)));
    um::process_owners().forget(owner);
    CHECK_EQ(fake.dropped, 0);
  }
  CHECK_EQ(fake.dropped, 1);
  {
    const owners::Lock lock(mutex);
  }
  CHECK_EQ(fake.dropped, 1);
}

TEST(owners_drop_references_whenever_a_lock_is_released_and_only_then) {
  set_fake();
  std::mutex mutex, other;
  owners::Lock lock(mutex);
  um::process_owners().forget(nullptr);
  CHECK(!owners::Lock(mutex, std::try_to_lock).owns_lock());
  owners::Lock moved(std::move(lock));
  CHECK(!lock.owns_lock());
  CHECK_EQ(fake.dropped, 0);
  moved = owners::Lock(other);
  CHECK_EQ(fake.dropped, 1);
  um::process_owners().forget(nullptr);
  moved.unlock();
  CHECK_EQ(fake.dropped, 2);
  moved.lock();
  CHECK(owners::Lock(mutex, std::try_to_lock).owns_lock());
  CHECK_EQ(fake.dropped, 2);
}

TEST(what_is_let_go_of_in_settling_is_freed) {
  Device device(16 * kMiB);
  set_fake();
  Gathered gathered{device.allocate(kPage), {}, 0};
  const um_placement placement = kIntermediate;
  for (int i = 0; i < 3; ++i) {
    void* last = nullptr;
    CHECK_OK(um_allocate(device, kPage, &placement, nullptr, &last));
    fake.let_go.push_back(last);
  }
  CHECK_OK(um_op_begin_gathered(device, um_intern("op"), UM_PHASE_FORWARD, 0, 0, gather_and_move, &gathered));
  um_op_end(device, nullptr, 0);
  CHECK_EQ(fake.dropped, 1);
  CHECK_EQ(device.memory().live_allocations, uint64_t{1});
}

TEST(operands_are_asked_for_once_where_the_op_begins) {
  Device device(16 * kMiB);
  Gathered gathered{device.allocate(kPage), {}, 0};
  CHECK_FAILS(UM_INVALID_ARGUMENT, um_op_begin_gathered(device, 0, 0, 0, 0, nullptr, &gathered));
  CHECK_OK(um_op_begin_gathered(device, um_intern("op"), UM_PHASE_FORWARD, 0, 0, gather, &gathered));
  CHECK_FAILS(UM_BAD_STATE, um_op_begin_gathered(device, 0, 0, 0, 0, gather, &gathered));
  CHECK_EQ(gathered.calls, 1);
  const um_shown output{gathered.shown, nullptr};
  um_op_end(device, &output, 1);
  CHECK_EQ(Device::at(gathered.shown).seen, 1u);
}
