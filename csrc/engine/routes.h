// Where a thread's allocations go when nobody says so: its own route, else the process's.
#pragma once

#include "engine/device.h"

namespace um {

// Both keep the placement as given: um_allocate says what is wrong with it. nullptr stands for UM_ROUTE_INHERIT.
void set_thread_route(const um_route* route);
um_route thread_route();
void set_process_route(const um_route* route);
// Ends all leases of threads' routes; returns the number of the next one.
uint64_t lease_routes();
// The process's route must not lead to a device that closes. A thread's own may: it then counts as off.
void forget_route(const um_device* device);

// The route that holds now; false when routing is off for this thread.
bool current_route(um_route* out);

}  // namespace um
