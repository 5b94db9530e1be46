// What the core throws inside; csrc/capi/guard.h turns it into a code and a message. Nothing of it leaves the
// library.
#pragma once

#include <stdexcept>
#include <string>

#include "umadvise.h"

namespace um {

class Error : public std::runtime_error {
 public:
  Error(um_status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  um_status status() const { return status_; }

 private:
  um_status status_;
};

inline void require(bool holds, const char* rule) {
  if (!holds) throw Error(UM_INVALID_ARGUMENT, rule);
}

}  // namespace um
