// The interposer: see interposer.cpp.
#pragma once

namespace um::hooks {

// True while this thread interposes and runs no op. Memory that torch makes then is the CPU's own, as it is with a GPU:
// the tensor that stands for a Python number, a storage that a file is read into.
bool interposing_outside_ops();

}  // namespace um::hooks
