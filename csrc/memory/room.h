// Room in vectors that noexcept paths push into later.
#pragma once

#include <algorithm>
#include <vector>

namespace um {

// For `count` elements in all. Doubles, so that one more each time costs little. Throws std::bad_alloc.
template <class Element>
void make_room(std::vector<Element>& elements, size_t count) {
  if (elements.capacity() < count) elements.reserve(std::max(count, 2 * elements.capacity()));
}

}  // namespace um
