#include "memory/names.h"

#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

namespace um {
namespace {

struct Names {
  std::mutex mutex;
  std::deque<std::string> texts{""};  // by id; elements never move
  std::unordered_map<std::string_view, uint32_t> ids;
};

// The table is never destroyed, because names are read until the process ends.
Names& names() {
  static Names* all = new Names;
  return *all;
}

}  // namespace

uint32_t intern(const char* text) {
  if (text == nullptr || *text == '\0') return 0;
  Names& all = names();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (const auto found = all.ids.find(text); found != all.ids.end()) return found->second;
  const auto id = static_cast<uint32_t>(all.texts.size());
  all.texts.emplace_back(text);
  all.ids.emplace(all.texts.back(), id);
  return id;
}

const char* name_of(uint32_t id) noexcept {
  Names& all = names();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return id < all.texts.size() ? all.texts[id].c_str() : "";
}

}  // namespace um
