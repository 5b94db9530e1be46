#include "engine/step_times.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

namespace um {

namespace {

// A device that was given two ops proceeds from one to the next in this time, with four events in between. An idle
// device begins this much later than it is launched.
constexpr int64_t kBetweenOpsNs = 20000;
// The same as in engine/op_durations.h.
constexpr int64_t kLeastPart = 8;

class Unexplained {
 public:
  Unexplained(int64_t begin_ns, int64_t end_ns) {
    if (begin_ns < end_ns) left_.emplace(begin_ns, end_ns);
  }

  // Returns how much of the interval was not claimed before.
  int64_t claim(int64_t begin_ns, int64_t end_ns) {
    int64_t claimed_ns = 0;
    auto at = left_.upper_bound(begin_ns);
    if (at != left_.begin()) --at;
    while (at != left_.end() && at->first < end_ns) {
      const auto [from_ns, to_ns] = *at;
      const int64_t first_ns = std::max(from_ns, begin_ns), last_ns = std::min(to_ns, end_ns);
      if (first_ns >= last_ns) {
        ++at;
        continue;
      }
      claimed_ns += last_ns - first_ns;
      at = left_.erase(at);
      if (from_ns < first_ns) left_.emplace(from_ns, first_ns);
      if (last_ns < to_ns) at = left_.emplace(last_ns, to_ns).first;
    }
    return claimed_ns;
  }

 private:
  std::map<int64_t, int64_t> left_;  // begin -> end
};

}  // namespace

std::vector<Stretch> stood_for_faults(const std::vector<cupti::Sample>& samples) {
  using namespace cupti;  // NOLINT(google-build-using-namespace): CUPTI's own names
  std::vector<Stretch> faults, comes, leaves;
  for (const Sample& sample : samples) {
    if (sample.start_ns == 0 || sample.end_ns <= sample.start_ns) continue;
    const Stretch stretch{sample.start_ns, sample.end_ns, UM_TIME_FIRST_TOUCH};
    const bool evicted = sample.flags == CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_EVICTION;
    if (sample.kind == CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_GPU_PAGE_FAULT) faults.push_back(stretch);
    if (sample.kind == CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD) comes.push_back(stretch);
    if (sample.kind == CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH && evicted)
      leaves.push_back(stretch);
  }
  const auto by_begin = [](const Stretch& one, const Stretch& other) { return one.begin_ns < other.begin_ns; };
  for (auto* each : {&faults, &comes, &leaves}) std::sort(each->begin(), each->end(), by_begin);
  std::vector<Stretch> stood;
  const auto within_faults = [&](const std::vector<Stretch>& copies, um_time kind) {
    size_t first = 0;
    for (const Stretch& copy : copies) {
      while (first < faults.size() && faults[first].end_ns <= copy.begin_ns) ++first;
      for (size_t i = first; i < faults.size() && faults[i].begin_ns < copy.end_ns; ++i) {
        if (kind == UM_TIME_MIGRATION) faults[i].kind = kind;
        stood.push_back({std::max(copy.begin_ns, faults[i].begin_ns), std::min(copy.end_ns, faults[i].end_ns), kind});
      }
    }
  };
  within_faults(leaves, UM_TIME_FAULT_ROOM);
  within_faults(comes, UM_TIME_MIGRATION);
  stood.insert(stood.end(), faults.begin(), faults.end());
  return stood;
}

std::vector<Stretch> copies_asked_for(const std::vector<cupti::Sample>& samples) {
  using namespace cupti;  // NOLINT(google-build-using-namespace): CUPTI's own names
  std::vector<Stretch> copies;
  for (const Sample& sample : samples) {
    const bool comes = sample.kind == CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD;
    const bool leaves = sample.kind == CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH;
    const bool asked = sample.flags == CUPTI_ACTIVITY_UNIFIED_MEMORY_MIGRATION_CAUSE_USER;
    if (!asked || !(comes || leaves) || sample.start_ns == 0 || sample.end_ns <= sample.start_ns) continue;
    copies.push_back({sample.start_ns, sample.end_ns, comes ? UM_TIME_PREFETCH : UM_TIME_FAULT_ROOM});
  }
  std::sort(copies.begin(), copies.end(),
            [](const Stretch& one, const Stretch& other) { return one.begin_ns < other.begin_ns; });
  return copies;
}

StepTimes times_of_step(const std::vector<Times::Turn>& host, const std::vector<OpTimeline::Op>& ops,
                        const std::vector<Stretch>& stood, const std::vector<Stretch>& copied, int64_t end_ns) {
  int64_t all[UM_TIME_COUNT] = {};
  StepTimes found{{}, std::vector<int64_t>(ops.size())};
  const auto compute = [&](size_t op, int64_t claimed_ns) {
    all[UM_TIME_COMPUTE] += claimed_ns;
    found.compute_ns[op] += claimed_ns;
  };
  Unexplained left(host.empty() ? end_ns : host.front().at_ns, end_ns);
  auto copy = copied.begin();
  for (const Stretch& each : stood) all[each.kind] += left.claim(each.begin_ns, each.end_ns);
  for (size_t i = 0; i < ops.size(); ++i) {
    const OpTimeline::Op& op = ops[i];
    const int64_t latest_ns = op.end_ns - (op.end_ns - op.begin_ns) / kLeastPart;
    const int64_t begin_ns = std::min(std::max(op.begin_ns, op.returned_ns), latest_ns);
    compute(i, left.claim(begin_ns, op.end_ns));
    if (i + 1 == ops.size()) break;
    const OpTimeline::Op& next = ops[i + 1];
    const bool ahead = next.called_ns <= op.latest_end_ns;
    const int64_t given_ns = std::max(op.latest_end_ns, next.called_ns);
    if (next.begin_ns - given_ns > kBetweenOpsNs) {
      while (copy != copied.end() && copy->end_ns <= given_ns) ++copy;
      for (auto each = copy; each != copied.end() && each->begin_ns < next.begin_ns; ++each)
        all[each->kind] += left.claim(std::max(each->begin_ns, given_ns), std::min(each->end_ns, next.begin_ns));
      left.claim(given_ns, next.begin_ns);  // the device waited for something else than the host
    } else if (ahead) {
      compute(i + 1, left.claim(given_ns, next.begin_ns));
    }
  }
  for (size_t i = 0; i < host.size(); ++i) {
    const int64_t until_ns = i + 1 < host.size() ? host[i + 1].at_ns : end_ns;
    const um_time kind = host[i].kind == UM_TIME_COMPUTE ? UM_TIME_SCRIPT : host[i].kind;
    all[kind] += left.claim(host[i].at_ns, until_ns);
  }
  static_assert(sizeof(all) == sizeof(found.all));
  std::memcpy(&found.all, all, sizeof(all));
  return found;
}

std::vector<um_residency> ran_by_op(const std::vector<OpTimeline::Op>& ops, const std::vector<int64_t>& compute_ns) {
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, int64_t> sums;
  for (size_t i = 0; i < ops.size(); ++i) {
    const OpIdentity& op = ops[i].identity;
    sums[{op.op, op.module, op.phase}] += compute_ns[i];
  }
  std::vector<um_residency> rows;
  rows.reserve(sums.size());
  for (const auto& [op, sum_ns] : sums) {
    um_residency row{};
    row.peak_bytes = static_cast<uint64_t>(UM_UNKNOWN);
    row.subject = UM_RESIDENCY_OP;
    std::tie(row.op, row.module, row.phase) = op;
    row.compute_ns = sum_ns;
    rows.push_back(row);
  }
  return rows;
}

}  // namespace um
