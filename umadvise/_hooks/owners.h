// Storages as owners of memory of ours: see owners.cpp.
#pragma once

#include <c10/core/Allocator.h>

#include <mutex>

namespace um::hooks {

// Lets the core change the addresses of what storages show, from now on.
void own_storages();

// Held while we give a storage other memory: none is re-pointed meanwhile. Nothing may be freed under it.
std::mutex& replacing_memory();

// Memory of ours together with what the storage held before it (storage.cpp); with `replacing_memory` held.
bool is_succession(const c10::DataPtr& data);
void repoint_succession(c10::DataPtr& data, void* to);

}  // namespace um::hooks
