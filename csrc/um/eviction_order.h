// Who is evicted first: two lists threaded through the chunks' own records, so that nothing is ever allocated.
#pragma once

#include <cstdint>

namespace um::rules {

inline constexpr uint32_t kNone = 0xFFFFFFFFu;  // no block, no chunk

enum class Queue : uint8_t { none, discarded, used };
enum class Rights : uint8_t { none, read, write };
enum class Location : uint8_t { none, host, device };

// All zero means "not allocated": the blocks of a fresh model are untouched pages of an anonymous mapping.
struct Block {
  uint32_t previous, next;  // neighbours in `queue`; meaningless while it is Queue::none
  uint32_t pins;
  Queue queue;
  Rights device_rights;  // the device's mapping: of its own copy when it has one, else of the host's
  Location preferred;
  bool allocated : 1;
  bool on_host : 1;
  bool on_device : 1;
  bool discarded : 1;
  bool read_mostly : 1;
  bool accessed_by_device : 1;

  bool duplicated() const { return on_host && on_device; }
  bool resident_nowhere() const { return !on_host && !on_device; }
};
static_assert(sizeof(Block) == 16, "half a million blocks should stay small");

// Discarded chunks go before used ones; in each list the head is the least recently serviced
// (uvm/uvm_pmm_gpu.c, get_first_allocated_chunk and root_chunk_update_eviction_list). The driver's list of unused
// chunks, those whose last copy has left, is not needed: it comes right after the free list and before everything that
// holds data, so giving such a chunk back at once changes neither whether an eviction is needed nor whom it hits.
template <class Node>  // with `previous`, `next` and `queue`
class Order {
 public:
  explicit Order(Node* nodes) : nodes_(nodes) {}

  void move_to_tail(uint32_t index, Queue queue) {
    remove(index);
    List& list = of(queue);
    Node& node = nodes_[index];
    node.queue = queue;
    node.previous = list.tail;
    node.next = kNone;
    (list.tail == kNone ? list.head : nodes_[list.tail].next) = index;
    list.tail = index;
  }

  void remove(uint32_t index) {
    Node& node = nodes_[index];
    if (node.queue == Queue::none) return;
    List& list = of(node.queue);
    (node.previous == kNone ? list.head : nodes_[node.previous].next) = node.next;
    (node.next == kNone ? list.tail : nodes_[node.next].previous) = node.previous;
    node.queue = Queue::none;
  }

  uint32_t first() const { return discarded_.head != kNone ? discarded_.head : used_.head; }

 private:
  struct List {
    uint32_t head = kNone, tail = kNone;
  };
  List& of(Queue queue) { return queue == Queue::discarded ? discarded_ : used_; }

  Node* nodes_;
  List discarded_, used_;
};

}  // namespace um::rules
