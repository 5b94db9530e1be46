// Outcomes and mappings as text, so that a test reads like the rule and a failure shows what happened instead.
#pragma once

#include <string>

#include "um/model.h"

namespace um {

// "copy_h2d coherence 3, drop_host coherence 3" plus ", first_touch" and so on for the flags; "" for no fault, no
// action.
inline std::string text(const Outcome& outcome) {
  static const char* const kDo[] = {"evict_copy", "evict_drop", "zero_device", "zero_host",
                                    "copy_h2d",   "copy_d2h",   "drop_host",   "drop_device"};
  static const char* const kCause[] = {"user", "coherence", "speculative", "eviction", "access_counter"};
  std::string all;
  const auto append = [&all](const std::string& part) { all += (all.empty() ? "" : ", ") + part; };
  if (outcome.fault) append("fault");
  for (int i = 0; i < outcome.count; ++i) {
    const Action& action = outcome.actions[i];
    append(std::string(kDo[static_cast<int>(action.what)]) + " " + kCause[static_cast<int>(action.cause)] + " " +
           std::to_string(action.block));
  }
  if (outcome.first_touch) append("first_touch");
  if (outcome.collapse) append("collapse");
  if (outcome.remote_map) append("remote_map");
  return all;
}

inline std::string text(Mapping mapping) {
  static const char* const kMapping[] = {"none", "device_read", "device_write", "remote_read", "remote_write"};
  return kMapping[static_cast<int>(mapping)];
}

// Mapping and copies: "device_read, device host".
inline std::string text(const Model& model, uint32_t block) {
  std::string all = text(model.mapping(block)) + ",";
  if (model.resident(block, Processor::device)) all += " device";
  if (model.resident(block, Processor::host)) all += " host";
  return all;
}

}  // namespace um
