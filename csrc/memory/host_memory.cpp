#include "memory/host_memory.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstdio>

#include "base/error.h"

namespace um {
namespace {

std::atomic<uint32_t> sharers{1};

// Returns 0 if /proc/meminfo does not have the field.
uint64_t meminfo_bytes(const char* field) {
  std::FILE* file = std::fopen("/proc/meminfo", "re");
  uint64_t kib = 0;
  if (file != nullptr) {
    const std::string format = std::string(field) + ": %" SCNu64 " kB";
    char line[128];
    while (std::fgets(line, sizeof(line), file) != nullptr && std::sscanf(line, format.c_str(), &kib) != 1) {
    }
    std::fclose(file);
  }
  return kib * 1024;
}

// Without /proc the kernel reports less: as available only free memory and buffers.
uint64_t sysinfo_bytes(bool available) {
  struct sysinfo info{};
  if (sysinfo(&info) != 0) throw Error(UM_UNSUPPORTED, "neither /proc/meminfo nor sysinfo() tells the host's memory");
  return (available ? uint64_t{info.freeram} + info.bufferram : uint64_t{info.totalram}) * info.mem_unit;
}

uint64_t memory_bytes(const char* field, bool available) {
  const uint64_t bytes = meminfo_bytes(field);
  return bytes != 0 ? bytes : sysinfo_bytes(available);
}

}  // namespace

void share_host(uint32_t processes) { sharers = std::max(processes, uint32_t{1}); }
uint64_t available_host_bytes() { return memory_bytes("MemAvailable", true) / sharers; }
uint64_t total_host_bytes() { return memory_bytes("MemTotal", false) / sharers; }

uint64_t default_host_bytes(uint64_t available_bytes) {
  constexpr uint64_t kLeastLeft = uint64_t{1} << 30;
  return available_bytes - std::min(available_bytes, std::max(available_bytes / 10, kLeastLeft));
}

std::string in_words(uint64_t bytes) {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  const std::string exact = std::to_string(bytes) + " bytes";
  return bytes < kMiB ? exact : std::to_string(bytes / kMiB) + " MiB (" + exact + ")";
}

}  // namespace um
