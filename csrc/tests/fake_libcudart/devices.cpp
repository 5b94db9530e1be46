// Device management. What the driver is not asked for is what an A100 tells (CUDA C++ Programming Guide 13.0, compute
// capability 8.0; NVIDIA A100 datasheet).
#include <cstdio>
#include <cstring>
#include <map>

#include "runtime.h"

using namespace fake_libcudart;  // NOLINT(google-build-using-namespace): this library is the runtime

namespace {

const std::map<cudaDeviceAttr, int> kCard = {
    {cudaDevAttrMaxThreadsPerBlock, 1024},
    {cudaDevAttrMaxBlockDimX, 1024},
    {cudaDevAttrMaxBlockDimY, 1024},
    {cudaDevAttrMaxBlockDimZ, 64},
    {cudaDevAttrMaxGridDimX, 2147483647},
    {cudaDevAttrMaxGridDimY, 65535},
    {cudaDevAttrMaxGridDimZ, 65535},
    {cudaDevAttrMaxSharedMemoryPerBlock, 48 << 10},
    {cudaDevAttrTotalConstantMemory, 64 << 10},
    {cudaDevAttrWarpSize, 32},
    {cudaDevAttrMaxPitch, 2147483647},
    {cudaDevAttrMaxRegistersPerBlock, 64 << 10},
    {cudaDevAttrClockRate, 1410000},
    {cudaDevAttrTextureAlignment, 512},
    {cudaDevAttrMultiProcessorCount, 108},
    {cudaDevAttrCanMapHostMemory, 1},
    {cudaDevAttrConcurrentKernels, 1},
    {cudaDevAttrMemoryClockRate, 1215000},
    {cudaDevAttrGlobalMemoryBusWidth, 5120},
    {cudaDevAttrL2CacheSize, 40 << 20},
    {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
    {cudaDevAttrAsyncEngineCount, 3},
    {cudaDevAttrUnifiedAddressing, 1},
    {cudaDevAttrStreamPrioritiesSupported, 1},
    {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 164 << 10},
    {cudaDevAttrMaxRegistersPerMultiprocessor, 64 << 10},
    {cudaDevAttrCooperativeLaunch, 1},
    {cudaDevAttrMaxSharedMemoryPerBlockOptin, 163 << 10},
    {cudaDevAttrMaxBlocksPerMultiprocessor, 32},
    {cudaDevAttrReservedSharedMemoryPerBlock, 1024},
};

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  static_cast<void>(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

// Fields that are attributes too.
void copy_attributes(cudaDeviceProp* out, int device) {
  const auto get = [device](cudaDeviceAttr which) { return attribute(which, device); };
  const auto bytes = [&](cudaDeviceAttr which) { return static_cast<size_t>(get(which)); };
  out->sharedMemPerBlock = bytes(cudaDevAttrMaxSharedMemoryPerBlock);
  out->sharedMemPerBlockOptin = bytes(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  out->sharedMemPerMultiprocessor = bytes(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  out->reservedSharedMemPerBlock = bytes(cudaDevAttrReservedSharedMemoryPerBlock);
  out->totalConstMem = bytes(cudaDevAttrTotalConstantMemory);
  out->memPitch = bytes(cudaDevAttrMaxPitch);
  out->textureAlignment = bytes(cudaDevAttrTextureAlignment);
  out->regsPerBlock = get(cudaDevAttrMaxRegistersPerBlock);
  out->regsPerMultiprocessor = get(cudaDevAttrMaxRegistersPerMultiprocessor);
  out->warpSize = get(cudaDevAttrWarpSize);
  out->maxThreadsPerBlock = get(cudaDevAttrMaxThreadsPerBlock);
  out->maxThreadsPerMultiProcessor = get(cudaDevAttrMaxThreadsPerMultiProcessor);
  out->maxBlocksPerMultiProcessor = get(cudaDevAttrMaxBlocksPerMultiprocessor);
  out->multiProcessorCount = get(cudaDevAttrMultiProcessorCount);
  out->major = get(cudaDevAttrComputeCapabilityMajor);
  out->minor = get(cudaDevAttrComputeCapabilityMinor);
  out->canMapHostMemory = get(cudaDevAttrCanMapHostMemory);
  out->concurrentKernels = get(cudaDevAttrConcurrentKernels);
  out->asyncEngineCount = get(cudaDevAttrAsyncEngineCount);
  out->unifiedAddressing = get(cudaDevAttrUnifiedAddressing);
  out->memoryBusWidth = get(cudaDevAttrGlobalMemoryBusWidth);
  out->l2CacheSize = get(cudaDevAttrL2CacheSize);
  out->streamPrioritiesSupported = get(cudaDevAttrStreamPrioritiesSupported);
  out->cooperativeLaunch = get(cudaDevAttrCooperativeLaunch);
  out->managedMemory = get(cudaDevAttrManagedMemory);
  out->concurrentManagedAccess = get(cudaDevAttrConcurrentManagedAccess);
  out->pageableMemoryAccess = get(cudaDevAttrPageableMemoryAccess);
  constexpr cudaDeviceAttr kBlock[] = {cudaDevAttrMaxBlockDimX, cudaDevAttrMaxBlockDimY, cudaDevAttrMaxBlockDimZ};
  constexpr cudaDeviceAttr kGrid[] = {cudaDevAttrMaxGridDimX, cudaDevAttrMaxGridDimY, cudaDevAttrMaxGridDimZ};
  for (int axis = 0; axis < 3; ++axis) {
    out->maxThreadsDim[axis] = get(kBlock[axis]);
    out->maxGridSize[axis] = get(kGrid[axis]);
  }
}

}  // namespace

EXPORT cudaError_t cudaGetDeviceCount(int* count) {
  *count = libcuda().device_count;
  return returned(libcuda().error);
}

EXPORT cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return returned(libcuda().error);
}

EXPORT cudaError_t cudaSetDevice(int device) { return returned(set_device(device)); }

EXPORT cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  if (libcuda().error != cudaSuccess) return returned(libcuda().error);
  if (device < 0 || device >= libcuda().device_count) return returned(cudaErrorInvalidDevice);
  if (const auto known = kCard.find(which); known != kCard.end()) {
    *value = known->second;
    return cudaSuccess;
  }
  return returned(libcuda().call.device_get_attribute(value, static_cast<driver::CUdevice_attribute>(which), device));
}

EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int device) {
  if (libcuda().error != cudaSuccess) return returned(libcuda().error);
  std::memset(out, 0, sizeof(*out));
  const driver::CUresult result = libcuda().call.device_get_name(out->name, sizeof(out->name), device);
  if (result != driver::CUDA_SUCCESS) return returned(result);
  static_cast<void>(libcuda().call.device_total_mem(&out->totalGlobalMem, device));
  std::memset(out->uuid.bytes, device + 1, sizeof(out->uuid.bytes));
  out->pciBusID = device + 1;
  copy_attributes(out, device);
  return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceGetPCIBusId(char* text, int text_bytes, int device) {
  std::snprintf(text, static_cast<size_t>(text_bytes), "0000:%02X:00.0", static_cast<unsigned>(device + 1));
  return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceSynchronize() {
  return when_ready([] { return libcuda().call.ctx_synchronize(); });
}

// Two emulated devices reach each other through the host alone.
EXPORT cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return absent("cudaDeviceEnablePeerAccess"); }

EXPORT cudaError_t cudaProfilerStart() { return cudaSuccess; }
EXPORT cudaError_t cudaProfilerStop() { return cudaSuccess; }
