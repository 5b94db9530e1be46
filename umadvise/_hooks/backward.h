// Finds the module of a backward op: the module whose forward ran when the op's autograd node was made.
#pragma once

#include <cstdint>

namespace um::hooks {

struct BackwardNode {
  bool running;     // this thread is evaluating a node of the autograd graph
  uint32_t module;  // the module whose forward made the node; 0: it is unknown
};
BackwardNode current_backward_node();

// Sets the module whose forward runs in this thread from now on, and returns the previous one.
uint32_t set_forward_module(uint32_t module);
uint32_t forward_module();
// Forgets the modules of all nodes until now. Does nothing while another thread looks a module up.
void forget_forward_modules();

}  // namespace um::hooks
