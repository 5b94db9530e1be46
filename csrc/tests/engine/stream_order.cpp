// Who waits for whom when memory changes streams: the hooks' own book of it, which knows nothing of torch.
#include "../../../umadvise/_hooks/stream_order.h"

#include <set>

#include "check.h"

using um::hooks::StreamOrder;

namespace {

const int block = 0;
void* stream(uintptr_t number) { return reinterpret_cast<void*>(number); }

std::set<void*> awaited(StreamOrder& order, uintptr_t by, int32_t device = 0) {
  std::set<void*> streams;
  order.allocated({device, stream(by)}, [&](void* other) { streams.insert(other); });
  return streams;
}

}  // namespace

TEST(a_stream_waits_once_for_each_other_that_has_freed) {
  StreamOrder order;
  CHECK(awaited(order, 1).empty());
  order.freed(&block, {0, stream(2)});
  CHECK(awaited(order, 2).empty());     // itself
  CHECK(awaited(order, 1, 1).empty());  // of another device
  CHECK(awaited(order, 1) == std::set<void*>{stream(2)});
  CHECK(awaited(order, 1).empty());
  order.freed(&block, {0, stream(2)});
  order.freed(&block, {0, stream(3)});
  CHECK((awaited(order, 1) == std::set<void*>{stream(2), stream(3)}));
}

TEST(a_stream_waits_for_those_that_the_memory_was_lent_to) {
  StreamOrder order;
  order.lend(&block, stream(3));
  CHECK(awaited(order, 1).empty());
  order.freed(&block, {0, stream(2)});
  CHECK((awaited(order, 1) == std::set<void*>{stream(2), stream(3)}));
  order.freed(&block, {0, stream(2)});  // another block of that address
  CHECK(awaited(order, 1) == std::set<void*>{stream(2)});
}

TEST(a_block_that_moves_stays_its_streams) {
  const int elsewhere = 0, back = 0;
  StreamOrder order;
  order.lend(&block, stream(3));
  order.own(&block, {0, stream(2)});
  order.moved(&block, &elsewhere);
  order.freed(&block, {0, stream(4)});  // another block of that address
  CHECK(awaited(order, 1) == std::set<void*>{stream(4)});
  order.moved(&elsewhere, &back);
  order.freed(&elsewhere);
  CHECK(awaited(order, 1).empty());
  order.freed(&back);
  CHECK((awaited(order, 1) == std::set<void*>{stream(2), stream(3)}));
  order.freed(&back);
  CHECK(awaited(order, 1).empty());
}
