// A driver library from before CUDA 12: it has cuInit and the first form of cuGetProcAddress, and must not be asked
// either.
#include <cstdlib>

extern "C" __attribute__((visibility("default"))) int cuInit(unsigned) { std::abort(); }
extern "C" __attribute__((visibility("default"))) int cuGetProcAddress(const char*, void**, int, unsigned long) {
  std::abort();
}
