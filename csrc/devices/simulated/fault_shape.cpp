#include "devices/simulated/fault_shape.h"

#include "um/pages.h"

namespace um::simulator {
namespace {

constexpr uint64_t kBlocks = 32;  // to take the mean over: windows and batches reach across their edges

}  // namespace

FaultShape FaultShapes::measure(const um_concurrency& kernel) const {
  pages::Machine machine{};
  machine.device_bytes = 2 * kBlocks * kBlockBytes;
  pages::Costs costs;
  costs.batch_max = batch_max_;
  PageModel model(machine, costs);
  const PageModel::Id id = model.allocate(kBlocks * kBlockBytes);
  model.prefetch(id, Processor::host);
  pages::Touch touch{};
  touch.bytes = kBlocks * kBlockBytes;
  touch.processor = Processor::device;
  touch.order = pages::TouchOrder::parallel;
  touch.window_pages = static_cast<uint32_t>(kernel.window_pages);
  touch.run_pages = static_cast<uint32_t>(kernel.run_pages);
  touch.faults_per_service = static_cast<uint32_t>(kernel.faults_per_service);
  model.touch(id, touch);
  uint64_t records = 0;
  for (const pages::Record& record : model.records()) records += record.direction == pages::Direction::h2d;
  const auto of_block = [](auto sum) { return static_cast<double>(sum) / static_cast<double>(kBlocks); };
  const pages::PageCounters& counters = model.counters();
  return {of_block(counters.shared.fault_groups), of_block(counters.batches), of_block(counters.faults),
          of_block(records)};
}

const FaultShape& FaultShapes::of(const um_concurrency& kernel) {
  const auto key = std::make_tuple(kernel.window_pages, kernel.run_pages, kernel.faults_per_service);
  const auto known = known_.find(key);
  return known != known_.end() ? known->second : known_.emplace(key, measure(kernel)).first->second;
}

}  // namespace um::simulator
