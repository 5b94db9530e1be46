// One open device: its allocations, the ops that run on it, and what happened to its memory.
//
// A um_device that users know of is never destroyed, only emptied: handles and addresses that are used too late find a
// closed device instead of freed memory. One lock guards everything here. Under it the driver and the emulated device's
// hooks may be called, but managed memory is never touched (docs/architecture.md, locks).
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/budget.h"
#include "engine/event_log.h"
#include "engine/op_durations.h"
#include "engine/program.h"
#include "engine/residency.h"
#include "engine/running_op.h"
#include "engine/sampling.h"
#include "engine/swapper.h"
#include "engine/tape.h"
#include "memory/allocations.h"
#include "memory/backend.h"
#include "memory/features.h"
#include "memory/migration.h"

struct um_device {
 public:
  // Throws um::Error and then gives the backend back.
  static um_device* open(um::Backend backend);
  // For a caller whose addresses nobody else ever sees: close it, then it may be destroyed.
  static std::unique_ptr<um_device> open_owned(um::Backend backend);
  // No new allocations; the last free empties the device. Throws um::Error when it is closed already, or when the
  // driver does not take its memory back.
  void close();
  bool accepts_allocations() const { return accepts_.load(std::memory_order_relaxed); }
  void query(um_device_info* out);
  // Empty where the device has it.
  std::string why_not(um::Feature feature);
  const um::driver::Driver& driver() const { return *backend_.driver; }
  // Emulated device only, and only until it is emptied; throws um::Error otherwise.
  uint64_t calls(const char* function);
  void fail(const char* function, uint64_t nth);
  void set_link(const um_link& link, const um_driver_costs& costs);
  um_charged charged();
  // Nanoseconds of one of `copies` copies in the directions asked for, which run at the same time (link_measure.cpp).
  void measure_link(uint64_t bytes, uint32_t copies, bool h2d, bool d2h, int64_t out_ns[2]);

  // ---- allocations (device_memory.cpp) ----
  // `outside_ops`: whoever asks may write to the memory himself, or hand it to a kernel of `stream` that no op
  // announces. Then chunks are there at once, and on CUDA they stay until an op was given them; so do those that an op
  // which only creates has asked for.
  enum class Use : uint8_t { by_ops, outside_ops };
  void* allocate(uint64_t bytes, const um_placement& placement, void* stream, Use use = Use::by_ops);
  // Of any device. False when no allocation starts there.
  static bool free(void* pointer) noexcept;
  static bool owns(const void* address) noexcept;
  static void describe(const void* address, um_allocation* out);
  static void label(const void* address, uint32_t role, uint32_t name);
  uint64_t list(um_allocation* out, uint64_t capacity);
  // What nobody uses goes back to the driver. Throws um::Error when the device is closed.
  void trim();

  // ---- data in and out (doors.cpp) ----
  static void copy_from_host(void* device_address, const void* host, uint64_t bytes);
  static void copy_to_host(void* host, const void* device_address, uint64_t bytes);
  static void prefetch(const void* address, uint64_t bytes, bool to_host, void* stream);

  // ---- addresses that leave torch (exports.cpp) ----
  static void export_address(const void* address);
  static void export_lasting(const void* address);
  static void release_export(const void* address);

  // ---- explicit swapping (device_swapping.cpp) ----
  void set_chunks(const um_chunk_options& options);
  void set_discards(bool on);
  void set_program(const um_program* program);  // nullptr: none
  void swapping(um_swap_counters* out);
  // Whose memory the address is and which op runs, in a few words (stray_access.cpp); um::emulated::Describer.
  static void tell_stray_access(uint64_t address, char* text, size_t bytes) noexcept;
  // Makes one possible; um::emulated::Owner.
  static bool serve_stray_access(uint64_t address, bool write) noexcept;

  // ---- order between streams (streams.cpp) ----
  void stream_wait(void* waiting, void* awaited);
  // Until it is freed or leaves the device, the allocation is used in this stream too.
  static void stream_uses(const void* address, void* stream);

  // ---- ops (ops.cpp) ----
  void begin_op(uint32_t op, uint32_t phase, uint32_t module, bool untouched, const um_access* accesses,
                uint32_t count);
  void end_op(const void* const* outputs, uint32_t count) noexcept;
  void set_budget(uint64_t budget_bytes);
  void set_step(uint32_t step);

  // ---- what happened (accounts.cpp) ----
  uint64_t drain_events(um_event* out, uint64_t capacity);
  uint64_t dropped_events();
  void enable_events(bool on);
  void counters(um_counters* out);
  void memory(um_memory_stats* out);
  um_memory_history memory_history();
  uint64_t placed(um_placed* out, uint64_t capacity);
  void reset_peaks();
  uint64_t residency(um_residency* out, uint64_t capacity);

  // ---- samples of CUDA's counters (device_sampling.cpp) ----
  void set_sampling(uint32_t every);
  void sampling(um_sampling* out);

  // ---- recording (recording.cpp) ----
  void record(bool on);
  template <class Row>
  uint64_t recorded(std::vector<Row> um::Tape::Rows::* rows, Row* out, uint64_t capacity) {
    const Lock lock(mutex_);
    settle_durations();
    const std::vector<Row>& all = tape_.rows().*rows;
    std::copy_n(all.begin(), std::min<uint64_t>(all.size(), capacity), out);
    return all.size();
  }
  uint64_t recorded_lost();

 private:
  using Lock = std::unique_lock<std::mutex>;
  // An allocation and the lock of its device, held; `block` is nullptr when there is none.
  struct Found {
    um_device* device = nullptr;
    um::Block* block = nullptr;
    Lock lock;
  };

  explicit um_device(um::Backend backend) : backend_(std::move(backend)) {}
  static Found find(uint64_t address, bool at_start);
  static Found find_range(const void* address, uint64_t bytes);

  // Throws um::Error when the device is emptied.
  Lock lock_alive();
  // With the lock held.
  um::Arena* own_arena(uint64_t address) const;
  um::Block* own_block(const void* address) const;
  um::Block* allocate_preferred(uint64_t bytes, um_placement placement, const um::Birth& birth);
  void place(um::Block* block, um::RunningOp* op, void* stream);
  void relabel(um::Block* block, uint32_t role, uint32_t name);
  void release(um::Block* block) noexcept;
  void forget(um::Block* block) noexcept;
  bool empty_out() noexcept;
  um_allocation describe(const um::Block& block);
  // Tells the budget, if there is one, what is used next, and sends to the host what must leave for that: on a GPU
  // after all that `stream` was given until now. Throws um::Error.
  template <class Change>
  void keep_budget(const Change& change, um::driver::CUstream stream = nullptr) {
    if (budget_ == nullptr) return;
    const um::RequiredContext current(backend_);
    budget_->follow(*allocations_);
    change(*budget_);
    budget_->enforce(backend_, backend_.hooks == nullptr ? stream : nullptr);
  }
  uint64_t most_budget_bytes() const;
  void seed(um::Budget& budget);
  void sample_residency();
  void collect_device_events() noexcept;
  um_event attribute(const um::emulated::Event& event, const um::OpIdentity& op) const;
  void follow(const um::emulated::Event& event, const um::OpIdentity& op) noexcept;
  bool residency_is_exact() const;
  void recount_residency() noexcept;
  void outside_ops() noexcept;
  void gather(um::RunningOp& op, const um_access* accesses, uint32_t count);
  void measure(um::RunningOp& op) const;
  void keep_workspaces(const um::RunningOp& op) noexcept;
  void set_workspace(um::Block* block, bool is_one);
  void drop_idle_budget() noexcept;
  void report_oversized(const um::RunningOp& op) noexcept;
  void record_begin(um::RunningOp& op, const um_access* accesses, uint32_t count);
  void record_end(const um::RunningOp& op, int64_t end_ns, const void* const* outputs, uint32_t count) noexcept;
  void time_begin(um::RunningOp& op) noexcept;
  void time_end(const um::RunningOp& op) noexcept;
  void settle_durations() noexcept;
  void record_copy(um_recorded_event_kind kind, const um::Block& block, const void* address, uint64_t bytes) noexcept;
  void record_service(const um::emulated::Event& event, bool inside) noexcept;
  bool is_sampled() const;
  bool has_managed() const;
  void end_sampled_step();
  void begin_sampled_step(uint32_t step);
  void sample_faults();
  void sample_begin(um::RunningOp& op) noexcept;
  void sample_end(const um::RunningOp& op) noexcept;
  uint64_t managed_limit_bytes() const;

  // exports.cpp
  void hold_exported(um::Block* block);
  void pin_pages(const um::Block& block);
  void end_export(um::Block* block) noexcept;
  bool end_oldest_export(um_memory memory);

  // device_swapping.cpp
  um::Block* allocate_evicting(uint64_t bytes, const um_placement& placement, const um::Birth& birth);
  void hold(um::Swapped* block, bool write, um::driver::CUstream stream = nullptr);
  void finish_kernels(um::Wait name, const std::string& doing) const;
  void bring_in(um::RunningOp& op);
  void unpin(um::RunningOp& op) noexcept;
  void let_go(um::RunningOp& op) noexcept;
  void go_on_swapping() noexcept;
  void make_chunked(um::Block* block, um::RunningOp* op, um::driver::CUstream stream, Use use);
  void bring_for_good(um::Block* block, um::driver::CUstream stream);
  void detach(um::Block* block) noexcept;
  void follow_op(const um::RunningOp& op);
  void follow_step(uint32_t step);
  void finish_op(const um::RunningOp& op) noexcept;
  // Each of the program's actions before or after the op that began last, with the context current.
  template <class Each>
  void act(bool after, const Each& each);
  void carry_out(const um::Program::Action& action);
  void move_managed(const um::Program::Action& action, um::driver::CUstream stream);
  void send_prefetches(um::driver::CUstream stream);
  void discard_freed(const um::Block& block) noexcept;
  void note_stream(um::driver::CUstream stream) {
    other_streams_ |= stream != nullptr && stream != um::driver::legacy_stream();
  }
  um::driver::CUstream side_stream();
  void order(um::driver::CUstream waiting, um::driver::CUstream awaited, um::Wait name);
  void end_swapping() noexcept;

  // Without it (ordered counting): an op's working set comes onto the device, reads as given, then writes, then what
  // the op allocated. False when all of it was there.
  bool touch(const um::RunningOp& op) const;
  void settle(const um::RunningOp& op);

  um::Backend backend_;
  std::atomic<bool> accepts_{true};

  std::mutex mutex_;
  std::unique_ptr<um::Allocations> allocations_;  // nullptr once the device is emptied
  std::unique_ptr<um::Budget> budget_;            // nullptr without one
  std::unique_ptr<um::Fences> fences_;            // until it is emptied
  std::unique_ptr<um::ChunkedMemory> chunked_;    // these two: once there are chunks
  std::unique_ptr<um::Swapper> swapper_;
  std::unique_ptr<um::Program> program_;  // nullptr without one
  um_chunk_options chunk_options_{};
  bool other_streams_ = false;          // than the legacy one were ever named
  um::driver::CUstream side_stream_{};  // of prefetches and discards
  uint64_t programs_followed_ = 0;      // of programs that are gone
  int64_t actions_ = 0, skipped_actions_ = 0, redundant_actions_ = 0;
  std::vector<um::Block*> operands_;      // of the op that begins
  std::vector<um::Prefetch> prefetches_;  // that a plan asks for at one point
  std::vector<um::RunningOp*> running_ops_;
  um::StablePool<um::RunningOp> op_pool_;
  um::OpContexts contexts_;
  static constexpr size_t kMostUnsettled = size_t{1} << 16;  // stretches of ops, when a step begins
  static constexpr uint64_t kNothingRefused = ~uint64_t{0};
  uint64_t refused_bytes_ = kNothingRefused;  // the least that plain memory had no room for since one was freed last
  uint32_t step_ = 0, step_ops_ = 0;
  int64_t op_count_ = 0, oversized_ops_ = 0;
  uint64_t last_lasting_ = 0;  // export, in the order in which they are asked for
  bool recording_ = false;
  um::EventLog events_;
  um::SwapEvents swap_events_{events_};
  um::Tape tape_;
  um::OpDurations durations_{backend_};     // of the recorded ops that the device may still run
  std::unique_ptr<um::Sampling> sampling_;  // once it was asked for
  uint64_t dropped_before_recording_ = 0;
  um::Level resident_, host_;  // bytes
  um::Level resident_by_role_[UM_ROLE_COUNT];
  std::unique_ptr<um::Residency> residency_;  // while events of an emulated device are recorded
  uint64_t dropped_before_ = 0;               // events that the device had lost when residency_ was counted last
};
