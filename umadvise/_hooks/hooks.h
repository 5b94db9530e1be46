// The C ABI of the extension: everything that needs torch's C++, called through ctypes.
//
// The rules are those of umadvise.h: a um_status, a message for each thread, and no exceptions. The um_* functions are
// resolved from libumadvise, which the process has loaded before.
#pragma once

#include <stddef.h>

#include "umadvise.h"

#define UM_HOOKS_ABI_VERSION 1u

extern "C" {

UM_API uint32_t um_hooks_abi_version(void);
// Returns the message of this thread's last failed call of this library. Never NULL.
UM_API const char* um_hooks_last_error(void);

// ---- allocator ----------------------------------------------------------------------------------------------------
// Puts the routing CPU allocator on top of torch's, once and for the life of the process.
UM_API um_status um_hooks_allocator_install(void);

// ---- CUDA allocator -----------------------------------------------------------------------------------------------
// Sets the CUDA device for which routes apply from now on; -1: none. Without a route, and on other devices, the
// functions below give plain device memory.
UM_API um_status um_hooks_cuda_serve(int32_t ordinal);
// Allocates memory that `stream` may use at once. 0 bytes gives NULL. If another stream has freed the memory, `stream`
// waits for it first.
UM_API um_status um_hooks_cuda_try_allocate(uint64_t bytes, int32_t ordinal, void* stream, void** out);
// torch calls this. It throws c10::OutOfMemoryError, which Python sees as torch.OutOfMemoryError, or c10::Error.
UM_API void* um_hooks_cuda_allocate(ptrdiff_t bytes, int ordinal, void* stream);
UM_API void um_hooks_cuda_free(void* block, size_t bytes, int ordinal, void* stream);
// Tensor.record_stream: the memory is not reused before the stream has done the work that it was given until the free.
UM_API void um_hooks_cuda_record_stream(void* block, void* stream);
// torch.cuda.empty_cache(): gives unused memory back to the driver, as far as the driver accepts it.
UM_API void um_hooks_cuda_reset(void);
// Returns the device that provides the plain memory of a CUDA device; NULL before the first request.
UM_API um_device* um_hooks_cuda_plain_device(int32_t ordinal);

// ---- storages -----------------------------------------------------------------------------------------------------
// `storage` is a c10::StorageImpl of the CPU (torch.UntypedStorage._cdata). All tensors on it follow, because only the
// storage's data pointer changes. Memory that the storage shared outside of torch (numpy) is not shared any more
// afterwards, and remains valid as long as the storage. A block of ours does not, so an exported one must not be moved.
// The caller ensures that no op uses the storage meanwhile.
//
// Moves the storage's bytes into memory of `device`; a storage that is there already moves to the new placement.
UM_API um_status um_hooks_storage_adopt(void* storage, um_device* device, const um_placement* placement);
// Sets whether memory that torch allocates in this thread outside of ops is routed too (for a storage that gets its
// bytes back). Otherwise it is not while the thread interposes.
UM_API void um_hooks_route_outside_ops(int32_t on);
// Moves the storage's bytes to ordinary CPU memory. Does nothing if they are not in our memory.
UM_API um_status um_hooks_storage_give_back(void* storage);
// Shows the core a tensor (c10::TensorImpl) that no op has returned, so that its memory may move: it was made within an
// op, and belongs to another owner.
UM_API void um_hooks_show(const void* tensor);

// The functions that re-point storages (um_owners_set), which are installed with the first allocator.
UM_API const um_owner_functions* um_hooks_owner_functions(void);

// ---- interposer ---------------------------------------------------------------------------------------------------
// Passes the ops of this thread, and of autograd's threads on its behalf, through um_op_begin and um_op_end of
// `device`; NULL ends that for this thread. UM_BAD_STATE while another thread interposes for another device.
UM_API um_status um_hooks_interpose(um_device* device);
// Passes the ops of a thread beside those to the same device, if there is one: their operands are held for them
// (UM_OP_BESIDE). Does nothing in a thread that interposes. 0 ends it.
UM_API void um_hooks_beside(int32_t on);
// From now on this thread's ops belong to the steps, and the ops of all other threads are beside them, until another
// thread is followed or this one ends. 0: the ops of all threads that interpose belong to the steps. Returns 0 if
// nothing changed, because this thread's ops are not interposed.
UM_API int32_t um_hooks_follow(int32_t on);
// Called in the thread of an op that does not fit in chunks, or beside plain memory in the budget; the core is not
// locked. Returns whether live allocations were converted to unified memory, in which new ones are then made. The op's
// begin, or the refused allocation in it, is then tried once more. NULL: it is refused.
typedef int32_t (*um_hooks_rescuer)(void);
UM_API void um_hooks_rescuer_set(um_hooks_rescuer rescuer);
// Called in the thread of an op that begins a step (um_repetition_set), before the op begins. Ops that run meanwhile
// pass through the interposer. Returns a um_status; if it is not UM_OK, the op is refused, with the message of
// um_last_error if it is UM_OUT_OF_DEVICE_MEMORY. NULL: there is nothing to call.
typedef int32_t (*um_hooks_edge)(void);
UM_API void um_hooks_edge_set(um_hooks_edge edge);
// Called for an operand or a result that is a Python object made of other tensors (`tensor`: the PyObject). Writes the
// addresses of their c10::TensorImpl, at most `capacity`, and returns how many there are. NULL: such tensors have no
// components.
typedef uint32_t (*um_hooks_parts)(void* tensor, void** parts, uint32_t capacity);
UM_API void um_hooks_parts_set(um_hooks_parts tell);
// From now on ops on lists that go by element run as several, so that the storages of each take at most the limit. A
// storage above half a unit takes whole units, a smaller one takes parts of one. A single element may exceed the limit.
// The unit is the chunk of explicit swapping; 1 counts bytes. A limit of 0 ends this.
UM_API um_status um_hooks_split_set(uint64_t limit_bytes, uint64_t unit_bytes);
// Returns the limit for an op that begins now; 0: none. The limit that was set is a first guess: if the chunks of
// `device` that are not pinned are less than one and a half times the limit, it becomes half of these from now on.
UM_API uint64_t um_hooks_split_limit(um_device* device);
// Returns how many ops could not allocate memory and ended nonetheless since the last call, the (interned) name of the
// op with the largest request, and its bytes. An op that falls back to another algorithm, as cuDNN's ops do, rounds
// differently.
UM_API uint64_t um_hooks_fallbacks(uint32_t* name, uint64_t* most_bytes);
// Sets the phase of this thread's ops from now on (um_phase). Ops of a backward node are backward in any phase but the
// optimizer's.
UM_API void um_hooks_phase_set(uint32_t phase);
// Sets the module (interned name) whose forward runs in this thread from now on, and returns the previous one. Backward
// ops belong to the module whose forward made their node.
UM_API uint32_t um_hooks_module_set(uint32_t module);

// Returns what the guard derives of an operator ("aten::add_", "Tensor"): its kind, "cpu" and "cuda" if it is composite
// there, and for each argument ": " and what happens to its tensors: nothing, shape, read, write or when_training. NULL
// if torch has no such operator. The string is the thread's until its next call.
UM_API const char* um_hooks_operator(const char* name, const char* overload);

// ---- compiled regions ---------------------------------------------------------------------------------------------
// One run of a graph that torch.compile has compiled is one op: its kernels access memory by address, in no op of
// torch. Objects are Python's, and these functions are called with Python's lock (ctypes.PyDLL).
//
// Sets what they need to know of Python's tensors: the classes of tensors and of parameters, and the bytes of an object
// before its own fields (object.__basicsize__). UM_UNSUPPORTED if `sample`, a tensor, is laid out in another way: its
// C++ object is not at `implementation`.
UM_API um_status um_hooks_python_set(void* tensor_class, void* parameter_class, uint64_t header_bytes, void* sample,
                                     const void* implementation);
// Makes a graph: its name (interned), and the indices of the inputs that it writes. `gradients`: the graph is a
// backward, which may write any input that is no parameter. Never NULL; it lives as long as the process.
UM_API void* um_hooks_region(uint32_t name, const uint32_t* written, uint32_t count, int32_t gradients);
// Begins a run with a list of inputs, of which only the tensors count. 1: it has begun; 0: this thread's ops are not
// guarded now; negative: it is refused, with the negated status, such as -UM_OUT_OF_DEVICE_MEMORY.
UM_API int32_t um_hooks_region_begin(const void* region, void* inputs);
// Ends the run that has begun in this thread. `outputs`: a sequence, or NULL if the run failed.
UM_API void um_hooks_region_end(void* outputs);
// Returns whether a run has begun in this thread: its inputs then keep their addresses.
UM_API int32_t um_hooks_region_runs(void);

// ---- memory accesses from C --------------------------------------------------------------------------------------
// These functions are called after um_hooks_python_set, and with Python's lock, as above.
//
// Returns a Python builtin that calls a function which uses its tensors' memory by address: all its tensors are pinned
// during the call, and count as written. `parts`: a tuple of the function, the interned name of its calls, a function
// that prepares arguments (called with them and, if there are any, the named ones; it returns a list of the tensors in
// them, a tuple and a dict), a function that lists the tensors in a result, and the class of errors that are raised if
// memory is out. `module` (a string) becomes its module's name. A new reference; NULL with an error of Python's.
UM_API void* um_hooks_extension_function(void* parts, void* module, const char* name, const char* documentation);
// From now on a tensor is pinned (um_export_lasting) when its address is requested through this table of functions (a
// writable DLPackExchangeAPI of torch's). UM_UNSUPPORTED: the table has an unknown version, and is unchanged.
UM_API um_status um_hooks_exchange_guard(void* table);
// While this is on, `torch.device(0)` is the device "cuda:0", and `torch.device(device)` returns that very object.
// `type`: the class torch.device. UM_UNSUPPORTED: its constructor was not found, and nothing has changed.
UM_API um_status um_hooks_device_constructor_set(void* type, int32_t on);

}  // extern "C"
