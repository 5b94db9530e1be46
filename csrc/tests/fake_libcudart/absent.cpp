// What this runtime does without: memory pools, graphs, sharing with other processes, variables of kernels.
#include "runtime.h"

#define ABSENT(name, ...) \
  EXPORT cudaError_t name(__VA_ARGS__) { return fake_libcudart::absent(#name); }

ABSENT(cudaDeviceGetDefaultMemPool, cudaMemPool_t*, int)
ABSENT(cudaMallocAsync, void**, size_t, cudaStream_t)
ABSENT(cudaFreeAsync, void*, cudaStream_t)
ABSENT(cudaMemPoolGetAttribute, cudaMemPool_t, cudaMemPoolAttr, void*)
ABSENT(cudaMemPoolSetAttribute, cudaMemPool_t, cudaMemPoolAttr, void*)
ABSENT(cudaMemPoolSetAccess, cudaMemPool_t, const cudaMemAccessDesc*, size_t)
ABSENT(cudaMemPoolTrimTo, cudaMemPool_t, size_t)

ABSENT(cudaStreamBeginCapture, cudaStream_t, cudaStreamCaptureMode)
ABSENT(cudaStreamEndCapture, cudaStream_t, cudaGraph_t*)
ABSENT(cudaGraphDebugDotPrint, cudaGraph_t, const char*, unsigned)
ABSENT(cudaGraphDestroy, cudaGraph_t)
ABSENT(cudaGraphExecDestroy, cudaGraphExec_t)
ABSENT(cudaGraphGetNodes, cudaGraph_t, cudaGraphNode_t*, size_t*)
ABSENT(cudaGraphInstantiateWithFlags, cudaGraphExec_t*, cudaGraph_t, unsigned long long)
ABSENT(cudaGraphLaunch, cudaGraphExec_t, cudaStream_t)
ABSENT(cudaGraphNodeGetDependencies, cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*, size_t*)

ABSENT(cudaIpcCloseMemHandle, void*)
ABSENT(cudaIpcGetEventHandle, cudaIpcEventHandle_t*, cudaEvent_t)
ABSENT(cudaIpcGetMemHandle, cudaIpcMemHandle_t*, void*)
ABSENT(cudaIpcOpenEventHandle, cudaEvent_t*, cudaIpcEventHandle_t)
ABSENT(cudaIpcOpenMemHandle, void**, cudaIpcMemHandle_t, unsigned)

ABSENT(cudaGetSymbolAddress, void**, const void*)
ABSENT(cudaMemcpyToSymbol, const void*, const void*, size_t, size_t, cudaMemcpyKind)
