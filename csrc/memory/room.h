// Reserves capacity in vectors to which noexcept functions append later.
#pragma once

#include <algorithm>
#include <vector>

namespace um {

// Ensures capacity for `count` elements in all. It doubles, so that growing by one is cheap. Throws std::bad_alloc.
template <class Element>
void make_room(std::vector<Element>& elements, size_t count) {
  if (elements.capacity() < count) elements.reserve(std::max(count, 2 * elements.capacity()));
}

}  // namespace um
