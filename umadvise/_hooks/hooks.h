// The C ABI of the extension: everything that needs torch's C++, called through ctypes.
//
// The rules are those of umadvise.h: a um_status and a message per thread, no exception leaves. The um_* functions are
// resolved from libumadvise, which the process has loaded before.
#pragma once

#include <stddef.h>

#include "umadvise.h"

#define UM_HOOKS_ABI_VERSION 1u

extern "C" {

UM_API uint32_t um_hooks_abi_version(void);
// Message of this thread's last failed call of this library. Never NULL.
UM_API const char* um_hooks_last_error(void);

// ---- allocator ----------------------------------------------------------------------------------------------------
// Puts the routing CPU allocator on top of torch's, once and for the life of the process.
UM_API um_status um_hooks_allocator_install(void);

// ---- CUDA allocator -----------------------------------------------------------------------------------------------
// Says for which CUDA device the routes are meant from now on; -1 for none. Where nothing is routed, and on other
// devices, the functions below give plain device memory.
UM_API um_status um_hooks_cuda_serve(int32_t ordinal);
// Memory that `stream` may work on at once. 0 bytes gives NULL. A stream that takes over memory which another one freed
// waits for that one first.
UM_API um_status um_hooks_cuda_try_allocate(uint64_t bytes, int32_t ordinal, void* stream, void** out);
// What torch calls. This one throws c10::OutOfMemoryError, which Python sees as torch.OutOfMemoryError, or c10::Error.
UM_API void* um_hooks_cuda_allocate(ptrdiff_t bytes, int ordinal, void* stream);
UM_API void um_hooks_cuda_free(void* block, size_t bytes, int ordinal, void* stream);
// Tensor.record_stream: the memory goes to nobody else before the stream has done what it was given until the free.
UM_API void um_hooks_cuda_record_stream(void* block, void* stream);
// torch.cuda.empty_cache(): memory that no tensor has goes back to the driver, as far as it takes it.
UM_API void um_hooks_cuda_reset(void);
// The device that plain memory of a CUDA device comes from; NULL as long as none was asked for.
UM_API um_device* um_hooks_cuda_plain_device(int32_t ordinal);

// ---- storages -----------------------------------------------------------------------------------------------------
// `storage` is a c10::StorageImpl of the CPU (torch.UntypedStorage._cdata). All tensors on it follow: only the
// storage's data pointer changes. Memory that it shared with something outside torch (numpy) is no longer shared
// afterwards, and stays valid as long as the storage; a block of ours does not, so an exported one must not be moved.
// The caller sees to it that no op uses the storage meanwhile.
//
// Moves its bytes into memory of `device`; a storage that is there already moves to the new placement.
UM_API um_status um_hooks_storage_adopt(void* storage, um_device* device, const um_placement* placement);
// Whether memory that torch makes in this thread goes by its route outside of ops too (a storage that is given its
// bytes back); it does not otherwise while the thread interposes.
UM_API void um_hooks_route_outside_ops(int32_t on);
// Moves its bytes out into ordinary CPU memory; nothing to do for a storage that is not in ours.
UM_API um_status um_hooks_storage_give_back(void* storage);
// What of ours a tensor (c10::TensorImpl) shows may move from now on, though no op has given it back: one that was made
// within an op, and is somebody else's.
UM_API void um_hooks_show(const void* tensor);

// What tells storages of another address, see um_owners_set: what is in place once an allocator is.
UM_API const um_owner_functions* um_hooks_owner_functions(void);

// ---- interposer ---------------------------------------------------------------------------------------------------
// Lets the ops of this thread, and of autograd's threads on its behalf, go through um_op_begin / um_op_end of `device`;
// NULL ends it for this thread. UM_BAD_STATE while another thread interposes for another device.
UM_API um_status um_hooks_interpose(um_device* device);
// Lets the ops of a thread that works beside those through to the same device, if there is one: what they are given is
// held for them (UM_OP_BESIDE). Nothing happens in a thread that interposes. 0 ends it.
UM_API void um_hooks_beside(int32_t on);
// This thread's ops are the steps' from now on, and those of all others are beside them, until another thread is
// followed or this one ends. 0: those of the threads that interpose are the steps'. Returns 0 where nothing has
// changed, as this thread's ops do not come here.
UM_API int32_t um_hooks_follow(int32_t on);
// Called in the thread of an op that does not fit in chunks, or beside plain memory in the budget; the core is not
// locked. Returns whether live allocations were converted into unified memory, which new ones get from now on. Then the
// op's begin, or the allocation in it that was refused, is tried again, once. NULL: it is refused.
typedef int32_t (*um_hooks_rescuer)(void);
UM_API void um_hooks_rescuer_set(um_hooks_rescuer rescuer);
// Called in the thread of an op that a step begins with (um_repetition_set), before it has begun; ops that run
// meanwhile go through the interposer like any other. Returns a um_status; where that is not UM_OK the op is refused,
// with the words of um_last_error if it is UM_OUT_OF_DEVICE_MEMORY. NULL: nobody wants to know.
typedef int32_t (*um_hooks_edge)(void);
UM_API void um_hooks_edge_set(um_hooks_edge edge);
// Called for an operand or a result that is a Python object made of other tensors (`tensor`: the PyObject): writes the
// addresses of their c10::TensorImpl, at most `capacity`, and returns how many there are. NULL: such tensors count as
// none.
typedef uint32_t (*um_hooks_parts)(void* tensor, void** parts, uint32_t capacity);
UM_API void um_hooks_parts_set(um_hooks_parts tell);
// Ops on lists that go by element run from now on as several, so that the storages of each, in whole units where they
// are above half a one and in parts of one where they are not, take no more than the limit. A single element may take
// more. The unit is the chunk of explicit swapping; 1 counts bytes. A limit of 0 ends it.
UM_API um_status um_hooks_split_set(uint64_t limit_bytes, uint64_t unit_bytes);
// The limit for an op that begins now; 0 for none. What is set is a first guess: where the chunks of `device` that
// never leave have left less room than one and a half times the limit, it is half of that room from now on.
UM_API uint64_t um_hooks_split_limit(um_device* device);
// How many ops have asked for memory, found no room, and ended all the same, since that was asked last; the (interned)
// name of the one that asked for most, and how much that was. An op that has another way to compute, as cuDNN's have,
// rounds otherwise then.
UM_API uint64_t um_hooks_fallbacks(uint32_t* name, uint64_t* most_bytes);
// What this thread's ops belong to from now on (um_phase). Ops of a backward node are backward whatever this says,
// except when it says optimizer.
UM_API void um_hooks_phase_set(uint32_t phase);
// The module (interned name) whose forward runs in this thread from now on; returns the previous one. Backward ops
// belong to the module whose forward made their node.
UM_API uint32_t um_hooks_module_set(uint32_t module);

// ---- compiled regions ---------------------------------------------------------------------------------------------
// One run of a graph that torch.compile has compiled, as one op: its kernels reach memory by address, in no op of
// torch's. Objects are Python's, and these functions are called with Python's lock (ctypes.PyDLL).
//
// What they need to know of Python's tensors: the class of tensors and that of parameters, and the bytes of an object
// before its own fields (object.__basicsize__). UM_UNSUPPORTED where `sample`, a tensor, is not laid out as expected:
// its C++ object has another address than `implementation`.
UM_API um_status um_hooks_python_set(void* tensor_class, void* parameter_class, uint64_t header_bytes, void* sample,
                                     const void* implementation);
// A graph: its name (interned), and the indices of the inputs that it writes. `gradients`: it is a backward's, which
// may write whatever is no parameter. Never NULL; it lasts for the life of the process.
UM_API void* um_hooks_region(uint32_t name, const uint32_t* written, uint32_t count, int32_t gradients);
// Begins a run with a list of inputs, of which those count that are tensors. 1: it has begun; 0: nobody guards this
// thread's ops now; negative: it is refused, -UM_OUT_OF_DEVICE_MEMORY among them.
UM_API int32_t um_hooks_region_begin(const void* region, void* inputs);
// Ends the run that has begun in this thread. `outputs`: a sequence, or NULL where it failed.
UM_API void um_hooks_region_end(void* outputs);
// Whether a run of one has begun in this thread: what it is given stays at its addresses.
UM_API int32_t um_hooks_region_runs(void);

// ---- what reaches memory from C
// --------------------------------------------------------------------------------------- After um_hooks_python_set,
// and with Python's lock, as above.
//
// A builtin of Python's that calls a function which uses its tensors' memory by address: all that it is given stays
// from before the call to its end, and counts as written. `parts`: a tuple of the function, the interned name that its
// calls have, what prepares arguments (called with them and, where there are any, the named ones; it gives a list of
// the tensors in them, a tuple and a dict), what lists the tensors in a result, and the class of errors that are raised
// where there is no room. It has `module` (a string) for its module's name. A new reference; NULL with an error of
// Python's.
UM_API void* um_hooks_extension_function(void* parts, void* module, const char* name, const char* documentation);
// From now on, for good, a tensor stays where it is whose address is asked for through this table of functions (a
// DLPackExchangeAPI of torch's, which can be written): um_export_lasting. UM_UNSUPPORTED: it is of a version that is
// not known, and as before.
UM_API um_status um_hooks_exchange_guard(void* table);
// While it is on, `torch.device(0)` is the device "cuda:0", and `torch.device(device)` returns that very object.
// `type`: the class torch.device. UM_UNSUPPORTED: its constructor was not found, and nothing has changed.
UM_API um_status um_hooks_device_constructor_set(void* type, int32_t on);

}  // extern "C"
