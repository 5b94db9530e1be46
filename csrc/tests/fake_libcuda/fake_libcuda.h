// How a test steers and observes the fake driver that it is linked to.
#pragma once

#include "driver/table.h"

struct FakeLibcuda {
  int version = 13000;
  um::driver::CUresult init_result = um::driver::CUDA_SUCCESS;
  int device_count = 1;
  const char* absent_symbol = "";  // the driver lacks this function in all its forms

  static constexpr int kNothing = -1, kOtherForm = -2;
  int last_called = kNothing;  // an index of kFunctions
  int init_calls = 0;
};
extern "C" __attribute__((visibility("default"))) FakeLibcuda fake_libcuda;
