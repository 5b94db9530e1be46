/* umadvise.h: the C ABI of libumadvise, the native core (no torch, no CUDA toolkit, no libpython).
 *
 * Rules that hold for every function here:
 *   - nothing prints, exits or throws across this boundary; a call returns a um_status and leaves its message
 *     in um_last_error() of the calling thread;
 *   - structures only grow at the end; a change that breaks callers raises UM_ABI_VERSION;
 *   - bytes are uint64_t named *_bytes, times are int64_t nanoseconds named *_ns;
 *   - a counter that nobody could observe holds UM_UNKNOWN (-1), never 0.
 */
#ifndef UMADVISE_H
#define UMADVISE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UM_API __attribute__((visibility("default")))
#define UM_ABI_VERSION 4u
#define UM_UNKNOWN (-1)

typedef int32_t um_status;
enum {
  UM_OK = 0,
  UM_INVALID_ARGUMENT = 1,
  UM_UNSUPPORTED = 2,
  UM_OUT_OF_DEVICE_MEMORY = 3,
  UM_OUT_OF_HOST_MEMORY = 4,
  UM_DRIVER_ERROR = 5,
  UM_BAD_STATE = 6,
  UM_STEP_BEGINS = 7 /* no failure: begin a step first (um_repetition_set) */
};

UM_API uint32_t um_abi_version(void);
/* Message of this thread's last failed call; valid until its next failed call. Never NULL. */
UM_API const char* um_last_error(void);

/* ---- names: interned once, then passed as 32-bit ids (0 = no name) -------------------------------------- */
UM_API uint32_t um_intern(const char* text);
UM_API const char* um_string(uint32_t id); /* "" for 0 and unknown ids; lives as long as the process */

/* ---- devices -------------------------------------------------------------------------------------------- */
typedef struct um_device um_device;

typedef enum { UM_COUNTING_ORDERED = 0, UM_COUNTING_RAW = 1 } um_counting;

typedef struct um_emulated_options {
  uint64_t capacity_bytes; /* "GPU memory"; rounded down to 2 MiB; at least 4 MiB */
  uint64_t host_bytes;     /* most bytes the host tier may hold; 0 = what the machine has available */
  uint32_t counting;       /* um_counting */
  uint32_t delay_max_us;   /* adversarial delays of up to this many microseconds; 0 = none */
  uint64_t delay_seed;     /* of the delays */
} um_emulated_options;

/* Opens an emulated device. Several may be open; each has its own address range. */
UM_API um_status um_device_open_emulated(const um_emulated_options* options, um_device** out);
/* Opens CUDA device `ordinal` (its primary context is retained). UM_UNSUPPORTED with a reason where there is none. */
UM_API um_status um_device_open_cuda(int32_t ordinal, um_device** out);
/* No new allocations; the device goes when its last allocation is freed. */
UM_API um_status um_device_close(um_device* device);
/* NULL when libcuda is usable here, else the reason it is not. */
UM_API const char* um_cuda_unavailable_reason(void);

typedef struct um_device_info {
  char name[128];
  char provider[16]; /* "emulated" or "cuda" */
  int32_t ordinal;
  int32_t driver_version;     /* as cuDriverGetVersion, e.g. 13000 */
  int32_t concurrent_managed; /* attribute 89: 1, 0 or UM_UNKNOWN */
  int32_t pageable_access;    /* attribute 88 */
  uint64_t total_bytes;
  uint64_t free_bytes; /* cuMemGetInfo: what plain allocations could still get */
  uint32_t counting;   /* um_counting; UM_COUNTING_RAW on CUDA */
  uint32_t live_allocations;
} um_device_info;
UM_API um_status um_device_query(um_device* device, um_device_info* out);

/* What the device can do: index 0.. until NULL gives a name. `reason` is NULL where it can, else why not, in words:
 * then whoever needs it is refused with that, or does without. */
UM_API const char* um_device_feature(um_device* device, uint32_t index, const char** reason);
/* Whether what is freed may be discarded, where the driver can. On CUDA it is off until it is switched on: what a
 * discard may take with it is up to the driver. */
UM_API um_status um_discard_set(um_device* device, int32_t on);
/* So many processes of one training divide the host's memory: from now on each counts on an equal part of what the
 * machine has, and of what is available there. 1 or 0: this one is alone. */
UM_API void um_host_shared_set(uint32_t processes);
/* How much managed memory the process may have of CUDA's drivers at once, over all devices; 0: as much as host and
 * device had free together when each device was opened, which is the most in any case. */
UM_API void um_most_managed_set(uint64_t bytes);

/* Puts our SIGSEGV handler back on top after somebody else (faulthandler.enable) installed one; that one keeps foreign
 * faults, and raised signals too where it was `chosen`: set by the user a moment ago. 1 where somebody had. */
UM_API int32_t um_emulated_claim_signals(int32_t chosen);

/* Functions of the driver table: index 0.. until NULL. `reason` is NULL where the entry is usable. */
UM_API const char* um_driver_function(um_device* device, uint32_t index, const char** reason);
/* Calls made so far of one driver function, or of all of them (function = NULL). Emulated device only. */
UM_API uint64_t um_emulated_calls(um_device* device, const char* function);
/* Makes the nth call from now (1 = the next) of `function`, or of any function (NULL), fail once; nth 0 disarms. */
UM_API um_status um_emulated_fail(um_device* device, const char* function, uint64_t nth);

/* ---- allocation ----------------------------------------------------------------------------------------- */
typedef enum {
  UM_ROLE_PARAMETER = 0, /* parameters and buffers of a module */
  UM_ROLE_INPUT = 1,
  UM_ROLE_INTERMEDIATE = 2,
  UM_ROLE_GRADIENT = 3, /* finer labels: they share the arenas of the first three */
  UM_ROLE_OPTIMIZER_STATE = 4,
  UM_ROLE_WORKSPACE = 5, /* never seen as a tensor's storage */
  UM_ROLE_COUNT = 6
} um_role;

typedef enum {
  UM_ADVICE_NONE = 0,
  UM_ADVICE_PREFERRED_LOCATION = 1,
  UM_ADVICE_ACCESSED_BY = 2,
  UM_ADVICE_READ_MOSTLY = 3,
  UM_ADVICE_PREFETCH = 4, /* no advice; each allocation is prefetched to the device when it is made */
  UM_ADVICE_COUNT = 5
} um_advice;

typedef enum {
  UM_MEMORY_MANAGED = 0,
  UM_MEMORY_DEVICE = 1,        /* plain device memory: never paged */
  UM_MEMORY_PREFER_DEVICE = 2, /* plain while there is any left, else managed */
  UM_MEMORY_CHUNKED = 3        /* moved explicitly between device and host: um_chunks_set */
} um_memory;

typedef struct um_placement {
  uint32_t memory; /* um_memory */
  uint32_t role;   /* UM_ROLE_PARAMETER, _INPUT or _INTERMEDIATE: chooses the arena */
  uint32_t advice; /* um_advice */
} um_placement;

/* Blocks start on 512 bytes. 0 bytes gives NULL and UM_OK. `stream` orders the prefetch of UM_ADVICE_PREFETCH. */
UM_API um_status um_allocate(um_device* device, uint64_t bytes, const um_placement* placement, void* stream,
                             void** out);
/* 1 when `pointer` was an allocation of ours (now freed), 0 when it is foreign. Never fails; safe at shutdown and after
 * fork. */
UM_API int32_t um_free(void* pointer);
/* 1 when the address lies in the range of some device of ours, live or closing. A few instructions. */
UM_API int32_t um_owns(const void* address);

/* Where this thread's torch allocations go. A thread's own route wins over the process's. */
typedef enum { UM_ROUTE_INHERIT = 0, UM_ROUTE_OFF = 1, UM_ROUTE_ON = 2 } um_route_state;
typedef struct um_route {
  uint32_t state; /* um_route_state; for the process INHERIT means OFF */
  um_placement placement;
  um_device* device;
  uint64_t lease; /* number of the lease that it ends with (um_route_lease); 0: it stays until another one is set */
} um_route;
/* Ends all leases: threads whose routes have one go by the process's from now on. Returns the number of the next. */
UM_API uint64_t um_route_lease(void);
UM_API void um_route_set_thread(const um_route* route);
UM_API void um_route_get_thread(um_route* out);
UM_API void um_route_set_process(const um_route* route);
/* The device that this thread allocates from now, or NULL when routing is off for it. */
UM_API um_device* um_route_device(void);
/* um_allocate by the current route. UM_BAD_STATE when routing is off. On CUDA `stream` may use the memory at once, also
 * outside of ops. */
UM_API um_status um_allocate_routed(uint64_t bytes, void* stream, void** out);

/* One allocation. */
typedef struct um_allocation {
  uint64_t serial; /* 1, 2, ... in order of birth */
  uint64_t address;
  uint64_t bytes; /* as requested */
  uint64_t reserved_bytes;
  uint32_t memory, role /* label */, advice;
  uint32_t name;                                               /* interned label, 0 when none was given */
  uint32_t birth_step, birth_op_index, birth_op, birth_module; /* op and module are interned names */
  uint32_t seen;                                               /* 1 once an op used it as a tensor's storage */
  uint32_t exports;  /* live ones, and 1 for a lasting one that gave way: its address is out */
  um_device* device; /* whose memory it is */
  uint32_t owned;    /* 1 where a storage is known that shows it: only then it can be evicted or converted */
} um_allocation;
/* The allocation that contains `address`. UM_INVALID_ARGUMENT when there is none. */
UM_API um_status um_allocation_at(const void* address, um_allocation* out);
/* Sets the finer role and, when not 0, the name. */
UM_API um_status um_allocation_label(const void* address, uint32_t role, uint32_t name);
/* Live allocations of a device, in order of address; returns how many there are (`out` gets at most `capacity`). */
UM_API uint64_t um_allocations(um_device* device, um_allocation* out, uint64_t capacity);

/* ---- data in and out ------------------------------------------------------------------------------------ */
/* Copies through the driver, synchronously; the device side may be any state of residency. */
UM_API um_status um_copy_from_host(void* device_address, const void* host, uint64_t bytes);
UM_API um_status um_copy_to_host(void* host, const void* device_address, uint64_t bytes);
UM_API um_status um_prefetch(const void* address, uint64_t bytes, int32_t to_host, void* stream);
/* What `waiting` is given from now on runs after what `awaited` has been given until now. */
UM_API um_status um_stream_wait(um_device* device, void* waiting, void* awaited);
/* The allocation is used in `stream` too, until it is freed or leaves the device: its memory serves nobody else before
 * what the stream was given by then has ended. */
UM_API um_status um_stream_uses(const void* address, void* stream);
/* Memory that nobody uses goes back to the driver. */
UM_API um_status um_memory_trim(um_device* device);
/* The doors of the emulated device: the whole allocation becomes resident, writable and pinned, so that the kernel
 * (write(2), read(2)) and foreign code may use its address, until as many releases or its free. UM_OUT_OF_DEVICE_MEMORY
 * when it, or what is pinned already, does not fit. On CUDA only for chunked memory: UM_UNSUPPORTED for other.
 * `present` receives the address that the same byte has from now on, because becoming resident may move the allocation;
 * NULL: the caller does not ask. The release takes the present address. */
UM_API um_status um_export(const void* address, const void** present);
UM_API um_status um_export_release(const void* address);
/* An export whose end nobody sees (data_ptr(), DLPack): it lasts until the allocation is freed, or until an op, an
 * allocation or another export finds no room. Then those that were asked for longest ago give way, when the device has
 * ended all that it was given, and their allocations move again. The address is the allocation's for its life: it stays
 * reserved, with nothing mapped there, while the allocation is evicted, and the first return is to it. Asked for again,
 * an export is the latest. On CUDA memory that is not chunked is only kept out of um_convert from then on.
 */
UM_API um_status um_export_lasting(const void* address);
/* The address that the allocation shows for its life in place of this one: no other live allocation gets it. It is for
 * comparisons: nothing is pinned, and nothing is mapped there unless the allocation lies there. */
UM_API um_status um_address_shown(const void* address, const void** shown);

typedef enum {
  UM_OWNERS_FORGOTTEN = 0,
  UM_OWNERS_REMEMBERED = 1,
  UM_OWNERS_CONVERTED_IN_OPS = 2 /* also refuses an op that is to be tried again after um_convert */
} um_owners;
/* Live allocations change their kind of memory, but for those that running ops use; earlier addresses are stale then.
 * The device remembers their owners (um_owners_set) from the first call with `which` (um_owners); one that has no known
 * owner stays. */
UM_API um_status um_owners_remember(um_device* device, uint32_t which);
typedef struct um_conversion {
  uint32_t memory;        /* um_memory: the kind to have; UM_MEMORY_PREFER_DEVICE: plain while there is any left */
  uint32_t advice[3];     /* by the role of an allocation's arena (UM_ROLE_PARAMETER, _INPUT, _INTERMEDIATE) */
  uint32_t own_advice[3]; /* likewise, bits of um_advice: managed memory with any other was placed by the user */
} um_conversion;
typedef struct um_converted {
  uint64_t moved, moved_bytes;
  uint64_t stayed, stayed_bytes; /* in use, exported, placed by the user, without a known owner, or without room */
} um_converted;
/* All that may move, the oldest first, one after the other: never more is on the device than before. What goes to
 * chunks lies on the host afterwards, and comes with its first use. The device is waited for. */
UM_API um_status um_convert(um_device* device, const um_conversion* conversion, um_converted* out);

/* ---- ops: the guard ------------------------------------------------------------------------------------- */
typedef enum { UM_PHASE_NONE = 0, UM_PHASE_FORWARD = 1, UM_PHASE_BACKWARD = 2, UM_PHASE_OPTIMIZER = 3 } um_phase;

typedef struct um_access {
  const void* address; /* foreign addresses are ignored */
  uint64_t bytes;
  uint32_t write;    /* 0 read, 1 write (or read and write) */
  uint32_t argument; /* for recordings: twice its index in the op's schema, + 1 where not every byte of it is touched */
  void* storage;     /* shows the allocation's address to others: um_owners_set; NULL: nobody who could be told */
} um_access;

/* Before an op: makes its storages resident in a fixed order (ordered counting; reads as given, then writes, each range
 * in ascending address), keeps the budget, and says which op later faults belong to. Ops do not nest: an inner begin is
 * an error of the caller. `flags`: of um_op_flag.
 *
 * An op that fails to begin has not run. Two statuses name a remedy that the caller may run before it begins the
 * op again with UM_OP_RETRIED: after UM_STEP_BEGINS it begins a step (um_repetition_set); after UM_OUT_OF_DEVICE_MEMORY
 * it frees device memory, by waiting for work that holds exported memory or by um_convert, or it calls
 * um_refusals_put_off. A remedy that runs ops gives them a flag of their own. */
typedef enum {
  UM_OP_CREATES = 1,        /* it only makes memory (aten::empty and kin): its allocations are not touched */
  UM_OP_BESIDE = 2,         /* of a thread that works beside the step: neither recorded nor compared with a program */
  UM_OP_AT_EDGE = 4,        /* the remedy for UM_STEP_BEGINS runs it: no step begins with it */
  UM_OP_DIFFERENTIATED = 8, /* autograd takes note of it */
  UM_OP_RETRIED = 16        /* it failed to begin, and a remedy has run since: no step begins with it */
} um_op_flag;
UM_API um_status um_op_begin(um_device* device, uint32_t op, uint32_t phase, uint32_t module, uint32_t flags,
                             const um_access* accesses, uint32_t count);
/* Says what the op is given. Called in the same thread with the device's lock held: no address of `um_access` changes
 * before the op has ended. It must not call the library, except for um_owns. */
typedef void (*um_gather)(void* context, const um_access** accesses, uint32_t* count);
/* The same for storages whose addresses may change until the device's lock is held: `gather` is called then, at most
 * once, and what it gives is read until the call returns. */
UM_API um_status um_op_begin_gathered(um_device* device, uint32_t op, uint32_t phase, uint32_t module, uint32_t flags,
                                      um_gather gather, void* context);
/* An allocation's address, and the storage that shows it to others, or NULL as in um_access. */
typedef struct um_shown {
  const void* address;
  void* storage;
} um_shown;
/* After it: the storages that it gave back; their allocations count as seen from now on. Returns how many chunked
 * allocations the op made that outlive it and were never seen. */
UM_API uint32_t um_op_end(um_device* device, const um_shown* outputs, uint32_t count);

/* Who shows allocations' addresses to others, and can be told that they change. The first three are called with the
 * lock of a device held: they must not call the library, nor free memory of it. */
typedef struct um_owner_functions {
  /* An owner, who is told of the allocation that starts at `address` until it is forgotten. NULL where `storage` does
   * not show that address, or shows memory whose address may not change. */
  void* (*remember)(void* storage, const void* address);
  /* The owner's allocation lies at `to` from now on. 0: he does not show `from` any more, and it stays there for good.
   */
  int32_t (*repoint)(void* owner, const void* from, void* to);
  void (*forget)(void* owner);
  /* In the thread that called any of those, when the lock has been released: what they could not let go of before. */
  void (*drop_references)(void);
} um_owner_functions;
/* The storage shows that allocation from now on, where that is known before an op is given it. */
UM_API void um_show(const um_shown* shown);
/* For the process and for good: `functions` are called from now on. Without any, no allocation's address changes. */
UM_API void um_owners_set(const um_owner_functions* functions);

/* The stream that this thread's ops are given to from now on; NULL, the legacy one, at the start. On the emulated
 * device ops run in the legacy stream, which is the calling thread. */
UM_API void um_op_stream_set(void* stream);

/* Budget in bytes for managed memory, kept before each op by prefetching the model's victims to the host; 0 = none. One
 * that is more than the device has is lowered to that; on CUDA to what the driver says is free or managed memory has
 * already, and UM_OUT_OF_DEVICE_MEMORY when that is not two blocks of 2 MiB. */
UM_API um_status um_budget_set(um_device* device, uint64_t budget_bytes);
/* The most that UM_MEMORY_DEVICE may take of the device from now on, its unused parts included; 0 = all that there is.
 * What would be more is out of memory. */
UM_API um_status um_plain_limit_set(um_device* device, uint64_t limit_bytes);
/* Step edges: index of the step that begins now (1, 2, ...), or 0 outside steps. Op indices restart at 1. Where
 * refusals were put off, what it returns is theirs, and the step has ended. */
UM_API um_status um_step_set(um_device* device, uint32_t step);
/* Once an op of a step was refused for want of chunks: it may be tried again, and what it and the ops after it find no
 * room for is used in the host's memory, until um_step_set refuses the step with UM_OUT_OF_DEVICE_MEMORY, and says what
 * all of it needs. UM_UNSUPPORTED outside of steps, and on a GPU. */
UM_API um_status um_refusals_put_off(um_device* device);
/* Whether an op of the running step was refused and its refusal put off. */
UM_API int32_t um_refusal_pending(um_device* device);
/* Ends within a step what um_refusals_put_off began, and returns what um_step_set would return at its end: UM_OK where
 * nothing was put off. `update_bytes`: an update that will not run would use so many tensors of so many bytes at once,
 * which the budget that the message names holds too; 0 for none. */
UM_API um_status um_refusals_end(um_device* device, uint64_t update_bytes, uint64_t update_tensors);
/* From now on the contents of the allocation at the address are kept in each step, before an op writes to it first, for
 * um_step_undo, but not while it is managed memory. */
UM_API um_status um_step_watch(const void* address);
/* Writes back what was kept in the step that runs or has just ended: the contents of watched allocations as the step
 * found them, and, where a refusal was put off, of all others that an op wrote after that, as they were then.
 * `refused_at`: serial of the latest allocation before the refusal; 0: none was put off. */
UM_API um_status um_step_undo(um_device* device, uint64_t* refused_at);
/* Looks for steps that nobody marks, in the ops that come from now on, or no longer: at a place that comes again and
 * again, the same in each of them. Where one begins with an op, um_op_begin returns UM_STEP_BEGINS and the op has not
 * begun: tell of the edge with um_step_set, and begin the op once more with UM_OP_RETRIED. */
UM_API um_status um_repetition_set(um_device* device, int32_t on);
/* A module with parameters is called, by no other module's forward and in no backward. `module` is the same number
 * whenever it is called. 1 where a step begins with that call. */
UM_API int32_t um_repetition_call(um_device* device, uint64_t module, int32_t differentiated);

/* ---- what happened -------------------------------------------------------------------------------------- */
typedef enum {
  UM_CAUSE_USER = 0,
  UM_CAUSE_COHERENCE = 1,
  UM_CAUSE_SPECULATIVE = 2,
  UM_CAUSE_EVICTION = 3,
  UM_CAUSE_ACCESS_COUNTER = 4,
  UM_CAUSE_COUNT = 5
} um_cause;

typedef enum {
  UM_EVENT_FAULT_GROUP = 0, /* one service of one 2 MiB block; duration is the whole service */
  UM_EVENT_TRANSFER_H2D = 1,
  UM_EVENT_TRANSFER_D2H = 2,
  UM_EVENT_EVICTION = 3, /* a block left the device to make room; bytes copied, 0 when dropped; on a GPU, for a budget:
                            what an op stood still for that, with all that the driver did */
  UM_EVENT_COLLAPSE = 4, /* a write ended a read-mostly duplicate */
  UM_EVENT_REMOTE_MAP = 5,
  UM_EVENT_OVERSIZED_OP = 6, /* an op's working set (bytes) exceeds the capacity or budget */
  UM_EVENT_SILENT_WRITE = 7, /* to a block that is mapped read-only, by whoever announced none; writable from now on */
  UM_EVENT_SWAP_IN = 8,      /* a copy of an allocation to the device was begun */
  UM_EVENT_SWAP_OUT = 9,     /* an allocation began to leave the device; bytes copied, 0 when the host had them */
  UM_EVENT_WAIT_COPY = 10,   /* an op stood still for bytes on their way; the cause is that of the copy */
  UM_EVENT_WAIT_ROOM = 11,   /* an op stood still until an allocation had left */
  UM_EVENT_LABEL = 12        /* role and name of an allocation are these from now on */
} um_event_kind;

/* Of explicit swaps, in `um_event.cause`. They add up to um_swap_counters. A GPU's waits are told of once they are
 * over, perhaps in a later step than that of the op that waited; those for room without an allocation. */
typedef enum {
  UM_SWAP_PLANNED = 0,   /* a plan asked for it */
  UM_SWAP_ON_DEMAND = 1, /* an op needed it, and no plan had asked for it in time */
  UM_SWAP_FOR_ROOM = 2   /* something else needed its place, and no plan had said what was to leave */
} um_swap_cause;

typedef struct um_event {
  int64_t start_ns, duration_ns; /* CLOCK_MONOTONIC */
  uint64_t address, bytes;
  uint64_t allocation; /* serial of what lies at the address, 0 when nothing does */
  uint64_t allocation_bytes;
  uint32_t step, op_index;         /* index within the step, 1, 2, ...; 0 outside ops */
  uint32_t op, module, phase;      /* of the running op */
  uint32_t role, name;             /* of the allocation */
  uint32_t birth_op, birth_module; /* of the allocation */
  uint16_t kind, cause;            /* cause: um_cause, um_swap_cause */
  uint8_t write, unordered, first_touch;
  uint8_t neighbours; /* of paging: other allocations in the 2 MiB block at the address; 255: that many or more */
} um_event;
/* Takes up to `capacity` of the oldest events out; returns how many. */
UM_API uint64_t um_events_drain(um_device* device, um_event* out, uint64_t capacity);
/* Events lost because nobody drained in time (the counters below never lose any). */
UM_API uint64_t um_events_dropped(um_device* device);
/* Recording of events on (1) or off (0); off at the start. */
UM_API void um_events_enable(um_device* device, int32_t on);

typedef struct um_counters {
  int64_t fault_groups;     /* all, the unordered ones included */
  int64_t unordered_faults; /* ordered counting: what SIGSEGV still caught; raw counting: 0 */
  int64_t first_touches;    /* fault groups or prefetches that found nothing to copy */
  int64_t bytes_h2d[UM_CAUSE_COUNT], bytes_d2h[UM_CAUSE_COUNT];
  int64_t evictions;         /* with a copy */
  int64_t evictions_dropped; /* without one: duplicated or discarded */
  int64_t collapses;
  int64_t remote_maps;
  int64_t remote_accesses;  /* UM_UNKNOWN where they cannot be seen (always on the emulated device) */
  int64_t fault_service_ns; /* sum over fault groups; on a GPU also over what a budget has leave before an op */
  int64_t op_count;
  int64_t oversized_ops;
} um_counters;
/* Since the device was opened. Fields that CUDA alone could tell hold UM_UNKNOWN there. */
UM_API um_status um_counters_read(um_device* device, um_counters* out);

typedef struct um_memory_stats {
  uint64_t requested_bytes, requested_peak_bytes; /* live allocations, as asked for */
  uint64_t reserved_bytes, reserved_peak_bytes;   /* arenas */
  uint64_t resident_bytes,
      resident_peak_bytes;              /* on the device, managed and plain; estimated on CUDA without a budget: all */
  uint64_t host_bytes, host_peak_bytes; /* managed bytes that live on the host ("swapped") */
  uint64_t workspace_bytes;             /* live and never seen as a storage */
  uint64_t allocation_count, free_count, live_allocations;
  uint64_t requested_by_role[UM_ROLE_COUNT];
  uint64_t requested_peak_by_role[UM_ROLE_COUNT];
  uint64_t resident_by_role[UM_ROLE_COUNT]; /* by arena: only the first three are not 0; on CUDA at most this */
  uint64_t resident_peak_by_role[UM_ROLE_COUNT];
} um_memory_stats;
UM_API um_status um_memory_read(um_device* device, um_memory_stats* out);
UM_API void um_memory_reset_peaks(um_device* device);

/* Where allocations were placed since the device was opened: bytes asked for, by the role that each has, or had last.
 */
typedef struct um_placed {
  uint32_t role, memory, advice; /* um_role, um_memory, um_advice as the driver took it */
  uint32_t reserved;
  uint64_t bytes;
} um_placed;
/* Returns how many rows there are, `out` gets at most `capacity`; rows without bytes are left out. */
UM_API uint64_t um_placed_read(um_device* device, um_placed* out, uint64_t capacity);

/* ---- residency by role, tensor and op: who lay on the device, the most at once --------------------------- */
/* An allocation has on the device what of it lies in 2 MiB blocks with a device copy. */
typedef enum {
  UM_RESIDENCY_ROLE = 0,   /* all live allocations with the label `role` */
  UM_RESIDENCY_TENSOR = 1, /* those of one role, size and name, or birthplace where they have no name */
  UM_RESIDENCY_OP = 2      /* everything on the device while an op ran; all 0: outside of ops */
} um_residency_subject;

typedef struct um_residency {
  uint64_t peak_bytes;                   /* UM_UNKNOWN, converted, on a GPU */
  uint64_t bytes;                        /* of one tensor */
  uint32_t subject;                      /* um_residency_subject */
  uint32_t role;                         /* of roles and tensors */
  uint32_t name, birth_op, birth_module; /* of tensors */
  uint32_t op, module, phase;            /* of ops */
  int64_t compute_ns;                    /* of ops: UM_TIME_COMPUTE */
} um_residency;
/* What was there since um_memory_reset_peaks, every role included; returns how many there are (`out` gets at most
 * `capacity`). Only while events are recorded, and on the emulated device: 0 otherwise, also when events were lost
 * since the reset or there were more than 65,536 tensors or ops to tell apart. On a GPU the ops of a step that was
 * sampled, from its end until the next one begins, and for how long each ran. */
UM_API uint64_t um_residency_read(um_device* device, um_residency* out, uint64_t capacity);

/* What a device's time goes into: each kind is measured where it happens, and none is what is left of others. */
typedef enum {
  UM_TIME_COMPUTE = 0,     /* ops run: what they wait for within is not in it */
  UM_TIME_GUARD = 1,       /* before and after ops: the guard, with the driver calls that it makes */
  UM_TIME_SCRIPT = 2,      /* between ops: the program itself, and torch on the host */
  UM_TIME_PLANNING = 3,    /* likewise, while plans are made or chosen */
  UM_TIME_OBSERVING = 4,   /* likewise, while steps are recorded, and counters and events read */
  UM_TIME_FIRST_TOUCH = 5, /* ops stand still: for faults that find nothing to copy */
  UM_TIME_MIGRATION = 6,   /* for faults whose bytes come */
  UM_TIME_FAULT_ROOM = 7,  /* for what faults evict; on a GPU, too, for pages that a budget has leave before an op */
  UM_TIME_PREFETCH = 8,    /* for prefetched bytes that are on their way */
  UM_TIME_SWAP_IN = 9,    /* for a swap-in that was ordered and is late, or for a copy to the host of what they write */
  UM_TIME_ON_DEMAND = 10, /* for a swap-in that nobody had ordered */
  UM_TIME_ROOM = 11,      /* for what leaves for them */
  UM_TIME_COUNT = 12
} um_time;
typedef struct um_spent_time { /* nanoseconds, in um_time's order */
  int64_t compute_ns, guard_ns, script_ns, planning_ns, observing_ns;
  int64_t first_touch_ns, migration_ns, fault_room_ns, prefetch_ns, swap_in_ns, on_demand_ns, room_ns;
} um_spent_time;

/* ---- the counters of a CUDA device: what CUPTI records in sampled steps ----------------------------------- */
/* Collecting slows a step down and both of its ends wait for the device, so only some steps are sampled: the first
 * three and every n-th. um_counters_read and the queue of events then tell of sampled steps alone. The device's records
 * say nothing of first touches, evictions without a copy, collapses and remote accesses: those stay UM_UNKNOWN. */
typedef struct um_sampling {
  uint32_t every;              /* as it was set; 0: off */
  uint32_t last_step;          /* index of the step that was sampled last, 0: none was */
  int64_t steps, failed_steps; /* sampled; due, but not or not wholly sampled, for `reason` */
  int64_t duration_ns;         /* of the sampled steps together, as um_counters_read tells of them */
  int64_t last_start_ns, last_end_ns;
  um_counters last; /* of last_step; not op_count and oversized_ops */
  /* Of all sampled steps, beyond um_counters. */
  int64_t page_faults; /* by fault group, how often the device reported its page */
  int64_t host_faults; /* of the CPU, in memory of this device */
  int64_t thrashing_bytes, throttles, throttled_ns;
  int64_t remote_map_bytes;
  int64_t remote_maps_by_cause[6]; /* unknown, coherence, thrashing, policy, out of memory, eviction */
  int64_t unknown_cause_bytes;     /* moved for no known cause: not part of any other number */
  int64_t ignored_records;         /* of other memory, other times, or kinds that are not known */
  char reason[512];                /* why the last step that was due was not sampled; "": it was */
  /* What the time of last_step went into, from the planning before it until the device had done all of it: ops ran,
   * stood still for faults and swaps, or the device had nothing to do while the host was at something, in ops' calls
   * too (script_ns). All UM_UNKNOWN where that could not be told. */
  um_spent_time last_times;
} um_sampling;
/* Sampling of every n-th step from the next um_step_set on; 0: of none. UM_UNSUPPORTED on the emulated device, which
 * counts each step exactly. Whether it works shows in the first step: see um_sampling_read. */
UM_API um_status um_sampling_set(um_device* device, uint32_t every);
UM_API um_status um_sampling_read(um_device* device, um_sampling* out);

/* ---- simulation: traces, devices and timelines as numbers ------------------------------------------------ */
/* The columns of umadvise/records/trace.py; pointers are borrowed for the call. */
typedef struct um_trace {
  uint64_t storage_count, op_count, access_count, event_count;
  const int64_t* storage_bytes;
  const uint8_t* storage_role;      /* um_role */
  const int32_t* storage_successor; /* -1: none */
  const uint8_t* op_phase;          /* um_phase */
  const int32_t* op_step;
  const int64_t* op_duration_ns; /* UM_UNKNOWN counts as 0 */
  const uint8_t* op_creates;
  const uint8_t* op_host_touch;
  const int32_t *op_window_pages, *op_run_pages, *op_faults_per_service; /* 0 = the device's */
  const int32_t* access_op;                                              /* non-decreasing */
  const int32_t* access_storage;
  const int64_t *access_offset_bytes, *access_bytes;
  const uint8_t* access_flags; /* 1 read, 2 write, 4 in place, 8 whole */
  const uint8_t* event_kind;   /* 0 allocate, 1 free, 2 host write, 3 host read, 4 service by a read, 5 by a write */
  const int32_t* event_op;
  const uint8_t* event_inside;
  const int32_t* event_storage;
  const int64_t *event_offset_bytes, *event_bytes;
} um_trace;

/* A link and its copy engines. A copy of n bytes takes fixed_ns + n / bytes_per_s; while the other direction copies
 * too, n / both_bytes_per_s. [0] host to device, [1] device to host. */
typedef struct um_link {
  int64_t fixed_ns[2];
  double bytes_per_s[2], both_bytes_per_s[2];
  uint32_t engines[2];
} um_link;

/* ---- the charged link of the emulated device ------------------------------------------------------------- */
/* What the driver does besides copying, in the granularity of the emulated device: one service moves 2 MiB. */
typedef struct um_driver_costs {
  int64_t fault_ns;          /* service of a faulting block */
  int64_t migrate_ns;        /* more when the block comes from the host */
  int64_t first_map_ns;      /* more when the device never had the block */
  int64_t zero_ns;           /* filling a block with zeros */
  int64_t evict_ns;          /* more when another block must leave, besides its copy */
  int64_t prefetch_call_ns;  /* of the thread that calls */
  int64_t prefetch_block_ns; /* of the driver, for each block that is not there yet */
  int64_t advise_call_ns;
  int64_t read_mostly_block_ns; /* advising a block that has contents */
  double prefetch_bytes_per_s;  /* 0: as the link */
  int64_t present_block_ns;     /* for each block of a prefetch that is there already */
} um_driver_costs;

/* Copies, prefetches, faults and evictions take from now on at least the real time that they would take over this link
 * with this driver: each direction does one copy at a time (`engines` is not looked at). What crosses the link by
 * remote access cannot be seen and costs nothing. Emulated device only. */
UM_API um_status um_emulated_set_link(um_device* device, const um_link* link, const um_driver_costs* costs);

/* From now on time is virtual: copies take that of this link, what the driver does for unified memory its costs, by a
 * clock that only the device moves, and an op what it is told, before it ends. Bytes move when a copy is given. So a
 * program repeats exactly, with its waits. Before the device has chunks; emulated device only. */
UM_API um_status um_emulated_set_clock(um_device* device, const um_link* link, const um_driver_costs* costs);

/* Since events were enabled, until `out_at_ns`, by um_now_ns; all UM_UNKNOWN while they are not, and where ops run
 * later than they are called: see um_sampling. */
UM_API um_status um_times_read(um_device* device, um_spent_time* out, int64_t* out_at_ns);
/* Time between ops is for `kind` (um_time, as far as UM_TIME_OBSERVING) from now on; returns what it was for,
 * UM_TIME_SCRIPT at the start. */
UM_API uint32_t um_times_outside(um_device* device, uint32_t kind);

/* What time it is on a device, in nanoseconds: CLOCK_MONOTONIC's, unless its time is virtual. */
UM_API int64_t um_now_ns(um_device* device);
/* The op that runs in this thread takes so many nanoseconds, or so many more. Nothing outside of ops. */
UM_API void um_op_took(int64_t duration_ns);

/* Time that the link and the driver would have been busy, since the device was opened; all zero without a link. */
typedef struct um_charged {
  int64_t copy_ns[2]; /* host to device, device to host */
  int64_t driver_ns;
} um_charged;
UM_API um_status um_emulated_charged(um_device* device, um_charged* out);

/* How long one copy of `bytes` between page-locked and device memory takes on this device: the mean of `copies`, in
 * each direction asked for, both of them at the same time. out_ns[0] to the device, out_ns[1] to the host; UM_UNKNOWN
 * for the other one. */
UM_API um_status um_link_measure(um_device* device, uint64_t bytes, uint32_t copies, int32_t h2d, int32_t d2h,
                                 int64_t* out_ns);

/* ---- simulation, continued: plans and timelines ---------------------------------------------------------- */
/* Actions of a plan. Each is anchored before (0) or after (1) an op and is about bytes of one storage. */
typedef enum {
  UM_PLAN_ADVISE = 0,   /* argument: um_advice */
  UM_PLAN_PREFETCH = 1, /* argument: 0 to the device, 1 to the host */
  UM_PLAN_DISCARD = 2,
  UM_PLAN_SWAP_OUT = 3, /* starts a copy to the host; the device memory is free when it has ended */
  UM_PLAN_SWAP_IN = 4,
  UM_PLAN_WAIT = 5,     /* the op waits for the storage's last copy */
  UM_PLAN_DROP = 6,     /* the device memory is free at once; argument 1: the host copy is still valid */
  UM_PLAN_RECOMPUTE = 7 /* the ops that made it run again; argument: index of the first of them */
} um_plan_kind;

typedef struct um_plan {
  uint64_t count;
  const uint8_t *kind, *after;
  const int32_t* op;
  const int32_t* storage;
  const int64_t *offset_bytes, *bytes, *argument;
} um_plan;

/* ---- explicit swapping: allocations that move --------------------------------------------------------------- */
typedef enum {
  UM_SMALL_STAY = 0, /* allocations below 64 KiB stay on the device, as long as they take 12 MiB at most */
  UM_SMALL_LEAVE = 1 /* every allocation leaves, however small: for tests */
} um_small;
typedef struct um_chunk_options {
  uint64_t budget_bytes;      /* device memory for chunks, rounded down to whole ones */
  uint64_t host_budget_bytes; /* most host memory for what is swapped out; 0: what the machine has available now, but
                                 for a tenth of it, and 1 GiB at least */
  uint64_t chunk_bytes;       /* 0: 2 MiB; a multiple of the granularity */
  uint64_t small;             /* um_small */
  uint64_t session_bytes;     /* budget that chunks share with the session's other memory, which a refusal then names;
                                 0: they share none */
} um_chunk_options;
/* Gives a device memory for UM_MEMORY_CHUNKED. Again with the same chunk_bytes and small: another budget, from the
 * next op on. Allocations may leave the device at any time outside of ops, if their owner can be told of another
 * address (um_owners_set) and `small` does not say that they stay; those of half a chunk and less share chunks. What
 * has left lies in page-locked memory of the host. */
UM_API um_status um_chunks_set(um_device* device, const um_chunk_options* options);
/* Returns what an allocation takes of chunks: whole chunks if it is larger than half a chunk, else whole parts of one.
 * A part is a 64th of a chunk, but at least 64 KiB. A chunk of 0 or 1 bytes counts bytes. */
UM_API uint64_t um_chunk_share(uint64_t bytes, uint64_t chunk_bytes);

/* One step that will come again and what is to be done in it. Everything is copied. */
typedef struct um_program {
  const um_trace* trace;   /* of one step, as recorded from this device */
  const um_plan* plan;     /* NULL: none, but what is used furthest ahead leaves first */
  const uint32_t* op_name; /* for each op, interned */
  const uint64_t*
      first_serials;    /* for each storage: the allocation that it is when the next step begins; 0: none yet */
  const uint8_t* state; /* for each storage: 1: it is the same allocation in every step, as parameters are; NULL: none
                           is */
  int64_t h2d_bytes_per_s; /* of the link, for what comes ahead of time though no plan asks for it; 0: not known */
  int32_t is_last;         /* 1: the step that ended last was this one */
  uint32_t replaces;       /* number of the program whose place and number it takes, such as one of the same step with
                              another plan; 0: none */
} um_program;
/* Follows this program too in the steps from the next um_step_set on, and returns its number. A step begins with the
 * program that came after the last one before. Its ops are compared with the trace by what they are and whom they are
 * given, not by sizes; where they differ they are sought in this program and the others, and what is found goes on
 * from there. Ops that no program has run as if there were none. */
UM_API um_status um_program_add(um_device* device, const um_program* program, uint32_t* out_number);
/* The next step begins with this program, unless it is known what comes after a step like the last one. */
UM_API um_status um_program_expect(um_device* device, uint32_t number);
/* Follows it no longer; 0: none. */
UM_API um_status um_program_drop(um_device* device, uint32_t number);

typedef enum {
  UM_PROGRAM_NONE = 0,
  UM_PROGRAM_WAITING = 1, /* between steps */
  UM_PROGRAM_DRIVING = 2,
  UM_PROGRAM_DIVERGED = 3 /* ops of the step came in another order than in one program, or were in none */
} um_program_status;

/* Totals since the device was opened; levels now; peaks since um_memory_reset_peaks. The words are those of
 * um_swap_result. */
typedef struct um_swap_counters {
  int64_t swap_ins, swap_outs, swap_in_bytes, swap_out_bytes; /* copies that were begun */
  int64_t on_demand_swap_ins;                                 /* of the swap-ins: no plan asked for them in time */
  int64_t late_swap_ins, unused_swap_ins; /* of the others: ordered no op before their use; gone again without one */
  int64_t evictions, cancelled, clean_drops, redundant_actions;
  int64_t actions, skipped_actions;   /* of plans: carried out; not, as what they are about was not there */
  int64_t wait_copy_ns, wait_room_ns; /* ops stood still: for bytes on their way; for device memory */
  int64_t silent_writes;              /* to what the host had unchanged, that no op announced: it was not lost */
  uint64_t chunk_bytes, budget_bytes;
  uint64_t used_bytes, used_peak_bytes;       /* chunks under live allocations, those that still leave included */
  uint64_t pinned_bytes, pinned_peak_bytes;   /* of those: of allocations that never leave */
  uint64_t host_bytes, host_peak_bytes;       /* of the host, that hold what is swapped out */
  uint64_t host_pool_bytes;                   /* kept for that */
  uint32_t program;                           /* um_program_status */
  uint32_t diverged_op;                       /* index within the step, 1, 2, ..., of the first difference; 0: none */
  uint32_t diverged_expected, diverged_found; /* interned names; equal where operands differ */
  uint64_t programs_followed;                 /* steps whose ops were those of one program, in order */
  /* Of the running or last step: the program that it was like in the end, 0: none; ops that were given something, and
   * those of them that no program had; how often it went on somewhere else than in order; what its ops made, and what
   * those of the program did. */
  uint32_t program_number, step_ops, unknown_ops, jumps;
  int64_t made_bytes, program_made_bytes;
  uint32_t laid_out; /* 0: kernels run elsewhere, and steps have not found their places in chunks: they map anew */
} um_swap_counters;
UM_API um_status um_swap_read(um_device* device, um_swap_counters* out);

/* What a device has counted and holds at the edge of a step. */
typedef struct um_edge {
  um_counters counters;
  um_spent_time times;
  um_swap_counters swaps;
  um_memory_stats memory;
  int64_t at_ns;          /* the time of `times`, by um_now_ns */
  uint64_t exports_ended; /* see um_memory_history */
  uint64_t events;        /* events that wait for um_events_drain */
} um_edge;
/* Three calls for the two edges of a step, in the place of um_times_outside, um_step_set and the separate readings.
 * Begins the time of the next step, counts it for UM_TIME_PLANNING, and reads times and at_ns. */
UM_API um_status um_edge_approach(um_device* device, um_edge* out);
/* Counts time for UM_TIME_OBSERVING, and reads `events`. If no event waits, begins the step and reads counters and
 * swaps; otherwise the caller drains the events and calls again. */
UM_API um_status um_edge_begin(um_device* device, uint32_t step, um_edge* out);
/* Counts time for UM_TIME_OBSERVING, ends the step, and reads everything. Fails as um_step_set does; the step has ended
 * then, and nothing was read. */
UM_API um_status um_edge_end(um_device* device, um_edge* out);
/* Reads everything, at any time. */
UM_API um_status um_edge_read(um_device* device, um_edge* out);

/* Sums of steps in a row. The caller sets count to 0 to begin, and owns `rows`: memory of 2 * row_capacity rows. */
typedef struct um_step_sums {
  um_edge last;          /* what the step added last counted in counters, times and swaps; at_ns: its length */
  um_edge all;           /* the sums of `last`; memory: the largest numbers */
  uint64_t count;        /* steps */
  um_residency* rows;    /* summed_rows rows: the largest peaks, and the sums of compute_ns */
  uint64_t row_capacity; /* rows of one step that find place */
  uint64_t row_count;    /* rows of the step that was to be added last */
  uint64_t summed_rows;
} um_step_sums;
/* Adds the step between two readings, and its rows of um_residency. Returns 1; 0 if nothing was added, as rows of other
 * subjects have been summed, or row_count is larger than row_capacity. */
UM_API int32_t um_step_sums_add(um_device* device, const um_edge* begun, const um_edge* ended, um_step_sums* sums);

/* What happened when. Spans of one track do not overlap, except that each copy engine is one track. */
typedef enum { UM_TRACK_COMPUTE = 0, UM_TRACK_H2D = 1, UM_TRACK_D2H = 2, UM_TRACK_HOST = 3 } um_track;
typedef enum {
  UM_SPAN_OP = 0,
  UM_SPAN_COPY = 1,      /* cause: um_cause */
  UM_SPAN_FAULT = 2,     /* fault services of one op: the compute track stands still */
  UM_SPAN_WAIT_COPY = 3, /* stall: the op needs bytes that are still on their way */
  UM_SPAN_WAIT_ROOM = 4, /* stall: device memory must become free first */
  UM_SPAN_REMOTE = 5,    /* stall: accesses over the link */
  UM_SPAN_CALL = 6,      /* the host is in a driver call: mapping, advice, prefetch */
  UM_SPAN_RECOMPUTE = 7
} um_span_kind;
typedef struct um_span {
  int64_t start_ns, duration_ns, bytes;
  int32_t op, storage; /* -1: none */
  uint8_t track, kind, cause, engine;
  uint32_t step; /* iteration of the simulation: 1, 2, ... */
} um_span;

/* ---- recording: ops, allocations and copies of a device, in order ---------------------------------------- */
typedef struct um_recorded_op {
  uint32_t op, phase, module, step;
  uint32_t creates;
  /* 1: duration_ns is the device's own, of what it ran, without what it stood still for before and in between. 0: the
   * host's, from the end of um_op_begin to um_op_end, without fault services: no more than launches, where the host
   * runs ahead. */
  uint32_t device_time;
  int64_t duration_ns; /* UM_UNKNOWN: still running */
  uint64_t first_access, access_count;
  uint64_t first_output, output_count;
} um_recorded_op;

typedef struct um_recorded_access {
  uint64_t allocation; /* serial */
  uint64_t offset_bytes, bytes;
  uint32_t write, argument; /* as in um_access */
} um_recorded_access;

typedef struct um_recorded_allocation {
  uint64_t allocation, bytes;
  uint32_t role, name, module, seen; /* as they were last */
} um_recorded_allocation;

typedef enum {
  UM_RECORDED_ALLOCATE = 0,
  UM_RECORDED_FREE = 1,
  UM_RECORDED_HOST_WRITE = 2,   /* um_copy_from_host */
  UM_RECORDED_HOST_READ = 3,    /* um_copy_to_host */
  UM_RECORDED_SERVICE_READ = 4, /* a fault; ordered counting: only what the guard did not foresee */
  UM_RECORDED_SERVICE_WRITE = 5
} um_recorded_event_kind;

typedef struct um_recorded_event {
  uint64_t allocation;
  int64_t offset_bytes; /* of the copy; of the serviced 2 MiB block, which may begin before the allocation */
  uint64_t bytes;       /* of copies */
  int32_t op;           /* index of the op that began last, -1 before the first */
  uint16_t kind;        /* um_recorded_event_kind */
  uint16_t inside;      /* 1 within an op, 0 after it */
} um_recorded_event;

typedef struct um_recorded_edge {
  uint64_t first_event; /* how many events there were before it */
  uint32_t step;        /* that began, 0 where one ended */
  uint32_t reserved;
} um_recorded_edge;

/* 1 forgets what is recorded and starts, 0 stops. Fault services are recorded while events are enabled too. */
UM_API um_status um_record(um_device* device, int32_t on);
/* Each returns how many there are; `out` gets at most `capacity`. An output is the serial of its allocation, 0 for
 * foreign memory. */
UM_API uint64_t um_recorded_ops(um_device* device, um_recorded_op* out, uint64_t capacity);
UM_API uint64_t um_recorded_accesses(um_device* device, um_recorded_access* out, uint64_t capacity);
UM_API uint64_t um_recorded_outputs(um_device* device, uint64_t* out, uint64_t capacity);
UM_API uint64_t um_recorded_allocations(um_device* device, um_recorded_allocation* out, uint64_t capacity);
UM_API uint64_t um_recorded_events(um_device* device, um_recorded_event* out, uint64_t capacity);
UM_API uint64_t um_recorded_edges(um_device* device, um_recorded_edge* out, uint64_t capacity);
/* Rows and fault services that there was no room for. */
UM_API uint64_t um_recorded_lost(um_device* device);

/* ---- unified memory page by page: a model of the driver, driven by hand ----------------------------------- */
typedef struct um_pages um_pages;

/* What the driver's work takes; csrc/um/pages_journal.h says what each is and where its default comes from. */
typedef struct um_pages_costs {
  uint32_t batch_max, reserved;
  int64_t batch_ns, entry_ns, block_ns, migrate_ns, first_map_ns, transfer_ns, evict_ns, host_fault_ns;
  int64_t prefetch_call_ns, prefetch_block_ns, advise_call_ns, read_mostly_block_ns, accessed_by_block_ns;
  uint64_t h2d_bytes_per_s, d2h_bytes_per_s, zero_bytes_per_s, remote_bytes_per_s;
  uint64_t prefetch_bytes_per_s; /* 0: as the link */
} um_pages_costs;

typedef struct um_pages_options {
  uint64_t device_bytes; /* for managed memory; rounded down to 2 MiB */
  uint32_t page_bytes;   /* the host's: 4096, 16384 or 65536 */
  uint32_t coherent;     /* 1: the host maps device memory, and accesses are counted */
  um_pages_costs costs;
} um_pages_options;

typedef enum { UM_TOUCH_SERIAL = 0, UM_TOUCH_BACKWARD = 1, UM_TOUCH_RANDOM = 2, UM_TOUCH_PARALLEL = 3 } um_touch_order;

typedef struct um_pages_touch {
  uint64_t allocation, offset_bytes, bytes;
  uint64_t stride_bytes; /* 0: every byte */
  uint32_t host, write;
  uint32_t order; /* um_touch_order */
  uint32_t window_pages, run_pages;
  uint32_t faults_per_service; /* 0: no limit but the batch's */
} um_pages_touch;

typedef enum { /* the driver's six calls */
               UM_SET_READ_MOSTLY = 0,
               UM_UNSET_READ_MOSTLY = 1,
               UM_SET_PREFERRED_LOCATION = 2,
               UM_UNSET_PREFERRED_LOCATION = 3,
               UM_SET_ACCESSED_BY = 4,
               UM_UNSET_ACCESSED_BY = 5
} um_driver_advice;

typedef struct um_pages_counters {
  um_counters shared;
  int64_t host_fault_groups; /* faults of the host, one page each */
  int64_t faults, batches;   /* of the device: entries, one a page */
  int64_t thrashing_pages;   /* detections */
  int64_t throttles, pinned_pages;
  int64_t remote_bytes; /* accessed over the link by either processor */
  int64_t zeroed_bytes; /* of device memory */
} um_pages_counters;

/* A transfer, or a fault group: one service of one 2 MiB block. */
typedef struct um_pages_record {
  int64_t start_ns, end_ns; /* of the model's clock */
  uint64_t address, bytes;  /* a fault group's bytes are 0: what it moves has records of its own */
  uint32_t faults;          /* of a fault group: entries */
  uint16_t kind;            /* UM_EVENT_FAULT_GROUP, UM_EVENT_TRANSFER_H2D or UM_EVENT_TRANSFER_D2H */
  uint16_t cause;
} um_pages_record;

UM_API um_status um_pages_create(const um_pages_options* options, um_pages** out);
UM_API void um_pages_destroy(um_pages* pages);
/* Allocations start on 2 MiB and have numbers that are never used again. */
UM_API um_status um_pages_allocate(um_pages* pages, uint64_t bytes, uint64_t* allocation, uint64_t* address);
UM_API um_status um_pages_free(um_pages* pages, uint64_t allocation);
UM_API um_status um_pages_accesses(um_pages* pages, const um_pages_touch* touch);
UM_API um_status um_pages_advise(um_pages* pages, uint64_t allocation, uint32_t advice, int32_t host);
UM_API um_status um_pages_prefetch(um_pages* pages, uint64_t allocation, int32_t host);
UM_API um_status um_pages_discard(um_pages* pages, uint64_t allocation);
UM_API um_status um_pages_counters_read(const um_pages* pages, um_pages_counters* out);
UM_API int64_t um_pages_now_ns(const um_pages* pages);
/* How many records there are; writes up to `capacity` of them from the `first` on. */
UM_API uint64_t um_pages_records(const um_pages* pages, uint64_t first, um_pages_record* out, uint64_t capacity);

/* ---- simulation of unified memory: the allocator, guard and page model of a device, with no bytes behind it -- */
typedef enum {
  UM_SERVICE_GUARD =
      0, /* ordered: the guard touches what ops use; services that the trace tells between ops are added */
  UM_SERVICE_RECORDED = 1 /* raw: the services that the trace tells, and no others */
} um_service;

/* What a kernel's faults look like: see um_trace's columns of these names. */
typedef struct um_concurrency {
  int32_t window_pages, run_pages, faults_per_service;
} um_concurrency;

typedef struct um_unified_options {
  uint64_t capacity_bytes;        /* of the device, for this program; rounded down to 2 MiB */
  uint64_t host_bytes;            /* most that managed memory may take on the host; 0: no limit */
  uint64_t budget_bytes;          /* kept by the guard, as um_budget_set; 0: none */
  const um_placement* placements; /* one for each storage of the trace */
  um_link link;
  um_pages_costs costs; /* its speeds and cost of copies are the link's */
  int64_t launch_ns;    /* of the host thread, once an op */
  um_concurrency concurrency;
  uint32_t service; /* um_service */
  uint32_t iterations;
  uint32_t caching; /* 1: torch's caching allocator gives managed memory out, and keeps it; 0: as um_allocate */
  uint32_t beside;  /* 1: no op waits for a prefetch of which it uses nothing, as in virtual time; 0: streams do */
} um_unified_options;

/* One iteration, or (step 0) what lies before the trace's first op. Blocks are whole in `counters`; the next five say
 * what a device's profiler would: kernels fault page by page there, and the driver's density prefetcher brings more. */
typedef struct um_simulated_step {
  um_counters counters;
  um_memory_stats memory;                                            /* when it ends; peaks are its own */
  int64_t gpu_fault_groups, gpu_batches, gpu_faults, gpu_records[2]; /* transfers; [0] host to device */
  int64_t start_ns, duration_ns;
  int64_t compute_ns, fault_ns, wait_copy_ns, wait_room_ns, remote_ns; /* of the compute track */
  int64_t call_ns;                                                     /* of the host thread */
  int64_t copy_ns[2];
  int64_t remote_bytes;
} um_simulated_step;

/* Runs a trace under plain unified memory with advice, and a plan of advice, prefetches and discards (NULL: none). */
typedef struct um_simulation um_simulation;
UM_API um_status um_simulate_unified(const um_trace* trace, const um_plan* plan, const um_unified_options* options,
                                     um_simulation** out);
/* How many there are, the one before the first op included; writes up to `capacity` of them. */
UM_API uint64_t um_simulation_steps(const um_simulation* simulation, um_simulated_step* out, uint64_t capacity);
UM_API uint64_t um_simulation_spans(const um_simulation* simulation, um_span* out, uint64_t capacity);
/* Of unified memory: where each storage of the trace was in the last iteration; 0: nowhere. */
UM_API uint64_t um_simulation_addresses(const um_simulation* simulation, uint64_t* out, uint64_t capacity);
UM_API void um_simulation_destroy(um_simulation* simulation);

/* ---- simulation of explicit swapping: whole storages copied to the host and back, by a plan or on demand --- */
typedef enum {
  UM_ALLOCATOR_EXACT = 0,    /* the sum of the live bytes */
  UM_ALLOCATOR_CACHING = 1,  /* torch's caching allocator */
  UM_ALLOCATOR_BEST_FIT = 2, /* one pool of budget bytes */
  UM_ALLOCATOR_VA_CHUNKS = 3 /* physical chunks behind contiguous addresses */
} um_allocator_model;

typedef enum {
  UM_EVICT_NEVER = 0,       /* what finds no room fails */
  UM_EVICT_FURTHEST = 1,    /* what is used furthest ahead leaves (Belady) */
  UM_EVICT_LEAST_RECENT = 2 /* what was used longest ago leaves */
} um_eviction;

typedef struct um_swap_options {
  uint64_t budget_bytes;
  uint64_t chunk_bytes;     /* of UM_ALLOCATOR_VA_CHUNKS */
  int64_t op_issue_ns;      /* of the host thread, which runs ahead of the device, for each op */
  int64_t op_sync_ns;       /* the compute queue stands still before each op, as under a scheduler that synchronises */
  int64_t map_ns_per_chunk; /* the compute queue stands still while a chunk is mapped */
  uint32_t allocator;       /* um_allocator_model */
  uint32_t eviction;        /* um_eviction */
  uint32_t iterations;      /* most repetitions of the trace; fewer when one is like the one before */
  uint32_t spans;           /* whether they are kept */
  int64_t *op_live_bytes, *op_reserved_bytes; /* NULL, or room for one an op: most at once in the last iteration */
} um_swap_options;

/* Of the last iteration, where nothing else is said. The step's time is the sum of the first six. */
typedef struct um_swap_result {
  int64_t compute_ns, recompute_ns;
  int64_t wait_copy_ns, wait_room_ns; /* stalls, as in um_span_kind */
  int64_t map_ns;                     /* the compute queue stood still for mappings */
  int64_t wait_host_ns;               /* it had run out of issued work, or the host synchronised with it */
  int64_t total_ns;                   /* of all iterations, to the end of the last copy */
  int64_t swap_in_bytes, swap_out_bytes, host_read_bytes, host_write_bytes; /* of copies that ended */
  int64_t swap_ins, swap_outs;
  int64_t on_demand_swap_ins; /* of the swap-ins: no plan asked for them in time */
  int64_t evictions;          /* no plan asked for them; with or without a copy */
  int64_t cancelled;          /* swaps that were not needed after all */
  int64_t clean_drops;        /* left without a copy: the host's was valid, or there were no contents */
  int64_t redundant_actions;  /* what they ask for was so already */
  int64_t recomputed_ops;
  int64_t iterations;          /* that were run */
  int64_t peak_live_bytes;     /* of all iterations, as all that follows */
  int64_t peak_reserved_bytes; /* what the allocator took of the budget */
  int64_t fragmentation_bytes; /* of those, not live */
  int64_t peak_op;             /* where; -1: before the first op */
  int64_t failed_op;           /* of a run that found no room, else UM_UNKNOWN */
  int64_t working_set_bytes;   /* of that op */
  int64_t budget_needed_bytes; /* at least, for that op */
} um_swap_result;

/* Executes a trace with a plan (NULL: none). Where no room can be had the status is UM_OUT_OF_DEVICE_MEMORY and the
 * result says where; its other fields are those up to there. The simulation has the last iteration's spans, no steps.
 */
UM_API um_status um_simulate_swap(const um_trace* trace, const um_plan* plan, const um_link* link,
                                  const um_swap_options* options, um_swap_result* result, um_simulation** out);

/* ---- what the driver says of a CUDA device, without a context on it ---------------------------------------- */
/* UM_UNSUPPORTED with the reason where the driver is not usable, or has no such device. */
typedef struct um_cuda_device {
  char name[128];
  int32_t driver_version; /* 1000 * major + 10 * minor of the newest CUDA that the driver supports */
  uint32_t device_count;
  uint64_t total_bytes;
} um_cuda_device;
UM_API um_status um_cuda_describe(int32_t ordinal, um_cuda_device* out);
/* Value of a CUdevice_attribute; UM_UNKNOWN for one that the driver does not know. */
UM_API um_status um_cuda_attribute(int32_t ordinal, uint32_t attribute, int32_t* out);

/* The libcupti that counters of a CUDA device come from: the one that this process has loaded, else the toolkit's.
 * UM_UNSUPPORTED with the reason where there is none. */
typedef struct um_cupti_library {
  char path[512];
  uint32_t version; /* of CUPTI's API */
} um_cupti_library;
UM_API um_status um_cupti_describe(um_cupti_library* out);

/* ---- simulation of a GPU: the engine swaps, the host runs ahead, nothing has bytes ------------------------- */
/* What a call of the driver takes of the thread that calls. */
typedef struct um_call_cost {
  uint32_t function, reserved; /* its name, interned: "cuMemMap" */
  int64_t ns, ns_per_mib;
} um_call_cost;

typedef struct um_gpu_options {
  um_link link;
  um_chunk_options chunks;
  uint64_t capacity_bytes;
  const uint64_t* storage_address; /* of what stays, when the step begins; 0: nobody knows. NULL: of none */
  const um_call_cost* call_costs;
  uint64_t call_cost_count; /* calls that are not among them take no time */
  int64_t op_ns;            /* of the host thread, for each op */
  uint32_t queue_ops;       /* by so many the host may be ahead of the device, then launches wait; 0: any */
  uint32_t iterations;      /* at least three: the plan applies from the second on */
  uint32_t warm_up;         /* iterations whose calls are not counted: two at least */
  uint32_t synchronous;     /* 1: ops run in the host's thread, and the engine does as on the emulated device */
  uint32_t until_steady;    /* 1: no more iterations than it takes until they are all alike */
  uint32_t jitter_permille; /* by up to so much kernels and the host's ops take longer, never twice the same */
} um_gpu_options;

/* One iteration. All but call_ns is of the compute queue: the duration is the sum of the three that follow it. */
typedef struct um_gpu_step {
  int64_t start_ns, duration_ns;
  int64_t compute_ns, wait_ns, host_late_ns; /* kernels; waits for events; nothing had been launched */
  int64_t call_ns;                           /* of the host thread, in driver calls, without waits */
  int64_t copy_ns[2];                        /* of the copy engines; [0] host to device */
  um_swap_counters swaps;                    /* of this iteration, as far as they are totals */
} um_gpu_step;

/* Calls of one function of a driver; of a simulation, in all iterations but those of warm-up. */
typedef struct um_call_count {
  uint32_t function, reserved; /* its name, interned */
  int64_t calls, ns;
  int64_t waits, wait_ns; /* simulated: how often the host stood still in it, besides ns, and how long */
} um_call_count;

/* Runs a trace by the engine, in chunks, on a GPU of which it cannot tell that it is simulated. `plan`: of swaps, in
 * the order of its anchors; NULL: what is used furthest ahead leaves. */
UM_API um_status um_simulate_gpu(const um_trace* trace, const um_plan* plan, const um_gpu_options* options,
                                 um_simulation** out);
UM_API uint64_t um_simulation_gpu_steps(const um_simulation* simulation, um_gpu_step* out, uint64_t capacity);
UM_API uint64_t um_simulation_calls(const um_simulation* simulation, um_call_count* out, uint64_t capacity);
/* Of libcuda, since this process began: the core's own calls, those that fail included. */
UM_API uint64_t um_cuda_calls(um_call_count* out, uint64_t capacity);

/* What came and went since the device was opened. The first starts again with um_memory_reset_peaks. */
typedef struct um_memory_history {
  uint64_t live_allocations_peak;
  uint64_t requested_bytes; /* of all allocations there ever were */
  uint64_t failure_count;   /* of requests for which there was no memory */
  uint64_t exports_ended;   /* by what found no room: um_export_lasting */
} um_memory_history;
UM_API um_status um_memory_history_read(um_device* device, um_memory_history* out);

#ifdef __cplusplus
}
#endif
#endif
