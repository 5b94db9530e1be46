// Storages as owners of our memory (owners.cpp).
#pragma once

#include <c10/core/Allocator.h>

#include <mutex>

namespace um::hooks {

// Lets the core change the addresses that storages show, from now on.
void own_storages();

// Held while a storage is given other memory, so that none is re-pointed meanwhile. No memory may be freed under it.
std::mutex& replacing_memory();

// Our memory together with the memory that the storage held before (storage.cpp). `replacing_memory` is held.
bool is_succession(const c10::DataPtr& data);
void repoint_succession(c10::DataPtr& data, void* to);

}  // namespace um::hooks
