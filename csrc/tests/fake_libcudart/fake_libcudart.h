// What those who compute kernels in place of a GPU tell this runtime.
#pragma once

extern "C" {

// A kernel of this device could not be computed: the device is lost, and what cudaGetErrorString tells from now on of
// illegal addresses is `why`.
void fake_libcudart_kernel_failed(int device, const char* why);
}
