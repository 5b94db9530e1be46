// Which module a backward op belongs to: its node's sequence number, and the module whose forward ran at that number.
#pragma once

#include <cstdint>

namespace um::hooks {

struct BackwardNode {
  bool running;     // this thread is evaluating a node of the autograd graph
  uint32_t module;  // whose forward made the node; 0 when nobody knows
};
BackwardNode current_backward_node();

// Names the module whose forward runs in this thread from now on; returns the previous one.
uint32_t set_forward_module(uint32_t module);
uint32_t forward_module();
// Forgets which modules made the nodes so far; afterwards they belong to no module. Does nothing while another thread
// looks a module up.
void forget_forward_modules();

}  // namespace um::hooks
