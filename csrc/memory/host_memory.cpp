#include "memory/host_memory.h"

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstdio>

#include "base/error.h"

namespace um {
namespace {

std::atomic<uint32_t> sharers{1};

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
  if (kib == 0) throw Error(UM_UNSUPPORTED, std::string("/proc/meminfo does not tell ") + field);
  return kib * 1024;
}

}  // namespace

void share_host(uint32_t processes) { sharers = std::max(processes, uint32_t{1}); }
uint64_t available_host_bytes() { return meminfo_bytes("MemAvailable") / sharers; }
uint64_t total_host_bytes() { return meminfo_bytes("MemTotal") / sharers; }

uint64_t spare_host_bytes(uint64_t available_bytes) {
  constexpr uint64_t kLeastLeft = uint64_t{1} << 30;
  return available_bytes - std::min(available_bytes, std::max(available_bytes / 10, kLeastLeft));
}

std::string in_words(uint64_t bytes) {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  const std::string exact = std::to_string(bytes) + " bytes";
  return bytes < kMiB ? exact : std::to_string(bytes / kMiB) + " MiB (" + exact + ")";
}

}  // namespace um
