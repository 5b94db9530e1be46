#include "engine/routes.h"

#include <atomic>

#include "engine/device.h"
#include "memory/process.h"

namespace um {
namespace {

thread_local um_route own_route{};

// The process's route is one word, which every allocation of every thread reads without a lock. The low bits are the
// device's address; above are 4 bits each for state, memory, role and advice.
constexpr int kAddressBits = 48;
std::atomic<uint64_t> shared_route{0};
std::atomic<uint64_t> present_lease{0};

uint64_t pack(const um_route& route) {
  const uint64_t fields[] = {route.state, route.placement.memory, route.placement.role, route.placement.advice};
  uint64_t word = reinterpret_cast<uint64_t>(route.device);
  for (int i = 0; i < 4; ++i) word |= (fields[i] & 15) << (kAddressBits + 4 * i);
  return word;
}

um_route unpack(uint64_t word) {
  const auto field = [&](int i) { return static_cast<uint32_t>(word >> (kAddressBits + 4 * i) & 15); };
  um_route route{};
  route.state = field(0);
  route.placement = {field(1), field(2), field(3)};
  route.device = reinterpret_cast<um_device*>(word & ((uint64_t{1} << kAddressBits) - 1));
  return route;
}

bool leads(const um_route& route) {
  return route.state == UM_ROUTE_ON && route.device != nullptr && route.device->accepts_allocations();
}

}  // namespace

void set_thread_route(const um_route* route) { own_route = route != nullptr ? *route : um_route{}; }
um_route thread_route() { return own_route; }
void set_process_route(const um_route* route) { shared_route = route != nullptr ? pack(*route) : 0; }

void forget_route(const um_device* device) {
  uint64_t word = shared_route;
  while (unpack(word).device == device && !shared_route.compare_exchange_weak(word, 0)) {
  }
}

uint64_t lease_routes() { return ++present_lease; }

bool current_route(um_route* out) {
  if (process::over()) return false;
  const bool ended = own_route.lease != 0 && own_route.lease != present_lease.load(std::memory_order_relaxed);
  if (own_route.state == UM_ROUTE_INHERIT || ended) {
    const uint64_t word = shared_route.load(std::memory_order_relaxed);
    if (word == 0) return false;
    *out = unpack(word);
  } else {
    *out = own_route;
  }
  return leads(*out);
}

}  // namespace um
