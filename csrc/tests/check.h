// The whole test framework: TEST(name) registers, CHECK stops the test with file, line and both values. A test file is
// one executable; `./test_x name` runs one test. Exit status 1 when any failed.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace check {

struct Test {
  const char* name;
  void (*run)();
};
inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}
struct Register {
  Register(const char* name, void (*run)()) { tests().push_back({name, run}); }
};
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// How often to repeat what is random: a quarter, so that sanitizers too are done soon; all with UMADVISE_FULL.
inline uint64_t times(uint64_t all) { return std::getenv("UMADVISE_FULL") != nullptr ? all : all / 4; }

// Of the delays of devices, so that runs differ where tools/prove_waits.py asks for it.
inline uint64_t seed(uint64_t usual) {
  const char* const added = std::getenv("UMADVISE_TEST_SEED");
  return usual + (added != nullptr ? std::strtoull(added, nullptr, 10) : 0);
}

inline void fail(const char* file, int line, const std::string& what) {
  std::ostringstream text;
  text << file << ":" << line << ": " << what;
  throw Failure(text.str());
}

template <class A, class B>
void equal(const char* file, int line, const char* expression, const A& a, const B& b) {
  if (a == b) return;
  std::ostringstream text;
  text << expression << ": " << a << " != " << b;
  fail(file, line, text.str());
}

}  // namespace check

#define TEST(name)                                                  \
  static void test_##name();                                        \
  static const check::Register register_##name{#name, test_##name}; \
  static void test_##name()

#define CHECK(condition)                                           \
  do {                                                             \
    if (!(condition)) check::fail(__FILE__, __LINE__, #condition); \
  } while (0)
#define CHECK_EQ(a, b) check::equal(__FILE__, __LINE__, #a " == " #b, (a), (b))

#ifdef __SANITIZE_THREAD__
// It takes a change of page tables under memory that another thread reads for a write to that memory, and a write for
// done before its page's protection holds it back until a copy has ended.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions() {
  return "race:um::emulated::Mapper\nrace:um::emulated::streaming_copy";
}
#endif

int main(int count, char** arguments) {
  int failed = 0, run = 0;
  for (const check::Test& test : check::tests()) {
    if (count > 1 && std::strcmp(arguments[1], test.name) != 0) continue;
    ++run;
    try {
      test.run();
    } catch (const std::exception& error) {
      ++failed;
      std::fprintf(stderr, "FAILED %s: %s\n", test.name, error.what());
    }
  }
  std::printf("%d passed, %d failed\n", run - failed, failed);
  return failed != 0 || run == 0;
}
