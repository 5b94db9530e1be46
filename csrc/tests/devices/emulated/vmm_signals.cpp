// Accesses that no mapping of virtual memory management allows: what ends the process and says why, and what is only
// counted.
#include <sys/mman.h>

#include <thread>

#include "child_process.h"
#include "emulated_vmm.h"

using namespace um::driver;  // NOLINT
using test::default_handler;
using test::died_of_segv;
using test::in_child;
using test::kBlock;
using test::kMiB;
using test::VirtualMemory;

namespace {

struct Mapped {
  explicit Mapped(const VirtualMemory& its_device, bool on_device = true)
      : device(its_device), address(device.reserve(2 * kBlock)), handle(device.create(2 * kBlock, on_device)) {
    device.map(address, 2 * kBlock, handle);
    device.allow(address, 2 * kBlock, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  }
  ~Mapped() {
    device.unmap(address, 2 * kBlock);
    device.release(handle);
    device.free_reserved(address, 2 * kBlock);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  const VirtualMemory& device;
  const CUdeviceptr address;
  const VirtualMemory::Handle handle;
};

void touch(CUdeviceptr address) { *reinterpret_cast<volatile unsigned char*>(address) = 1; }
unsigned char look(CUdeviceptr address) { return *reinterpret_cast<volatile unsigned char*>(address); }

std::string hexadecimal(CUdeviceptr address) {
  char text[32];
  std::snprintf(text, sizeof(text), "0x%016llx", address);
  return text;
}

int lines(const std::string& said) { return static_cast<int>(std::count(said.begin(), said.end(), '\n')); }

}  // namespace

TEST(an_access_where_nothing_is_mapped_is_fatal_and_names_the_address) {
  const auto dies = [](void (*body)(const Mapped&)) {
    std::string said;
    CHECK(died_of_segv(in_child(
        [&] {
          default_handler();
          VirtualMemory device(16 * kMiB);
          const Mapped mapped(device);
          dprintf(STDERR_FILENO, "%s\n", hexadecimal(mapped.address).c_str());
          body(mapped);
        },
        &said)));
    CHECK_EQ(lines(said), 2);
    CHECK_EQ(said.substr(19),
             "umadvise: access to emulated device memory that is not on the device: " + said.substr(0, 18) + "\n");
  };
  dies([](const Mapped& mapped) {  // unmapped
    mapped.device.unmap(mapped.address, 2 * kBlock);
    look(mapped.address);
  });
  dies([](const Mapped& mapped) {  // no access
    mapped.device.allow(mapped.address, 2 * kBlock, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    touch(mapped.address);
  });
  dies([](const Mapped& mapped) {  // mapped, but nobody was given access
    mapped.device.unmap(mapped.address, 2 * kBlock);
    mapped.device.map(mapped.address, 2 * kBlock, mapped.handle);
    look(mapped.address);
  });
  dies([](const Mapped& mapped) {  // after it was read-only
    mapped.device.allow(mapped.address, 2 * kBlock, CU_MEM_ACCESS_FLAGS_PROT_READ);
    mapped.device.unmap(mapped.address, 2 * kBlock);
    touch(mapped.address);
  });
}

TEST(whoever_knows_more_adds_it_to_the_line) {
  std::string said;
  CHECK(died_of_segv(in_child(
      [] {
        default_handler();
        VirtualMemory device(16 * kMiB);
        const Mapped mapped(device);
        static CUdeviceptr expected = mapped.address + kBlock + 5;
        device.hooks.set_describer([](uint64_t address, char* text, size_t bytes) {
          std::snprintf(text, bytes, "%s of tensor weight", address == expected ? "byte 5" : "another byte");
        });
        device.unmap(mapped.address, 2 * kBlock);
        look(expected);
      },
      &said)));
  CHECK_EQ(lines(said), 1);
  CHECK(said.find(", byte 5 of tensor weight\n") != std::string::npos);
}

TEST(an_owner_who_allows_what_he_does_not_serve_is_not_asked_for_ever) {
  std::string said;
  CHECK(died_of_segv(in_child(
      [] {
        default_handler();
        VirtualMemory device(16 * kMiB);
        device.hooks.set_owner([](uint64_t, bool) { return true; });
        look(device.reserve(kBlock));
      },
      &said)));
  CHECK_EQ(lines(said), 1);
  CHECK(said.find("not on the device") != std::string::npos);
}

TEST(an_owner_who_serves_the_same_access_is_asked_as_often_as_it_comes) {
  const int status = in_child([] {
    default_handler();
    VirtualMemory device(16 * kMiB);
    const Mapped mapped(device);
    static const Mapped* const served = &mapped;
    device.hooks.set_owner([](uint64_t, bool) {
      served->device.allow(served->address, 2 * kBlock, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
      return true;
    });
    static volatile int round = 0;  // in no register: those are the same each time
    for (; round < 1100; round = round + 1) {
      device.allow(mapped.address, 2 * kBlock, CU_MEM_ACCESS_FLAGS_PROT_NONE);
      look(mapped.address);
    }
  });
  CHECK(WIFEXITED(status));
  CHECK_EQ(WEXITSTATUS(status), 0);
}

TEST(reserved_memory_that_was_freed_is_not_allocated) {
  std::string said;
  CHECK(died_of_segv(in_child(
      [] {
        default_handler();
        VirtualMemory device(16 * kMiB);
        const auto address = device.reserve(kBlock);
        device.free_reserved(address, kBlock);
        look(address);
      },
      &said)));
  CHECK(said.find("not allocated") != std::string::npos);
}

TEST(an_earlier_handler_gets_the_fatal_access_after_the_line) {
  std::string said;
  const int status = in_child(
      [] {
        struct sigaction action{};
        action.sa_handler = [](int) { _exit(write(STDERR_FILENO, "theirs\n", 7) == 7 ? 5 : 6); };
        sigaction(SIGSEGV, &action, nullptr);
        VirtualMemory device(16 * kMiB);
        look(device.reserve(kBlock));
      },
      &said);
  CHECK(WIFEXITED(status));
  CHECK_EQ(WEXITSTATUS(status), 5);
  CHECK_EQ(lines(said), 2);
  CHECK(said.size() > 7 && said.substr(said.size() - 7) == "theirs\n");
}

TEST(a_write_to_what_is_read_only_is_carried_out_and_counted) {
  for (const bool on_device : {true, false}) {
    VirtualMemory device(16 * kMiB);
    const Mapped mapped(device, on_device);
    test::write(mapped.address, 2 * kBlock, 1);
    device.allow(mapped.address, 2 * kBlock, CU_MEM_ACCESS_FLAGS_PROT_READ);
    CHECK(test::reads(mapped.address, 2 * kBlock, 1));
    CHECK_EQ(device.totals().silent_writes, 0);
    device.events();
    device.hooks.set_context(device.ordinal, 77);
    touch(mapped.address + kBlock + 9);
    touch(mapped.address + kBlock + 10);
    device.hooks.set_context(device.ordinal, 0);
    CHECK_EQ(device.totals().silent_writes, 1);  // the block is writable now
    CHECK(test::reads(mapped.address, kBlock, 1));
    CHECK_EQ(+look(mapped.address + kBlock + 9), 1);
    CHECK_EQ(+look(mapped.address + kBlock + 8), +test::pattern(kBlock + 8, 1));
    const auto events = device.events();
    CHECK_EQ(events.size(), 1u);
    CHECK_EQ(static_cast<int>(events[0].kind), static_cast<int>(UM_EVENT_SILENT_WRITE));
    CHECK_EQ(events[0].address, mapped.address + kBlock + 9);
    CHECK_EQ(events[0].context, 77u);
    CHECK(events[0].write);
    // Read-only once more: it counts again, whether anybody records or not.
    device.hooks.record(device.ordinal, false);
    device.allow(mapped.address, 2 * kBlock, CU_MEM_ACCESS_FLAGS_PROT_READ);
    touch(mapped.address + kBlock);
    touch(mapped.address);
    CHECK_EQ(device.totals().silent_writes, 3);
    CHECK_EQ(device.totals().model.fault_groups, 0);
  }
}

TEST(threads_that_write_at_once_to_what_is_read_only_count_it_once) {
  VirtualMemory device(16 * kMiB, 50);
  const Mapped mapped(device);
  for (int round = 1; round <= 20; ++round) {
    device.allow(mapped.address, 2 * kBlock, CU_MEM_ACCESS_FLAGS_PROT_READ);
    std::thread writers[4];
    for (int i = 0; i < 4; ++i) writers[i] = std::thread([&mapped, i] { touch(mapped.address + 64 * i); });
    for (std::thread& writer : writers) writer.join();
    CHECK_EQ(device.totals().silent_writes, round);
  }
}

TEST(a_forked_child_sees_nothing_of_it) {
  VirtualMemory device(16 * kMiB);
  const Mapped mapped(device);
  touch(mapped.address);
  std::string said;
  CHECK(died_of_segv(in_child(
      [&] {
        default_handler();
        device.hooks.claim_signals(false);
        look(mapped.address);
      },
      &said)));
  CHECK(said.find("forked child") != std::string::npos);
  CHECK_EQ(+look(mapped.address), 1);
}
