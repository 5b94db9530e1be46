// cupti.h reaches the runtime's header of vector types, and that one a header of CUDA's compiler, which the packages
// with cupti.h and cuda.h do not have. The macros that are used on the way, as a host compiler wants them.
#pragma once

#define __cudart_builtin__
#define __device_builtin__
#define __device_builtin_surface_type__
#define __device_builtin_texture_type__
#define __host__
#define __device__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __builtin_align__(bytes) __attribute__((aligned(bytes)))
#define CUDARTAPI
