// Kernels of sparse tensors in coordinate format, which CUDA's torch builds of a library of device code.
#pragma once

namespace cuda_kernels {

// Puts the kernels in place of torch's own at the key of sparse CUDA tensors. Returns how many.
int register_sparse_kernels();

}  // namespace cuda_kernels
