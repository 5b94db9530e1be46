// The device and placement to which a thread's allocations go by default: its own route, or else the process's.
#pragma once

#include "umadvise.h"

namespace um {

// Both store the placement unchecked, because um_allocate reports what is wrong with it. nullptr: UM_ROUTE_INHERIT.
void set_thread_route(const um_route* route);
um_route thread_route();
void set_process_route(const um_route* route);
// Ends all leases of threads' routes, and returns the number of the next lease.
uint64_t lease_routes();
// Removes the process's route to a device that closes. A thread's own route to it then counts as off.
void forget_route(const um_device* device);

// Stores the route that applies now. Returns false if routing is off for this thread.
bool current_route(um_route* out);

}  // namespace um
