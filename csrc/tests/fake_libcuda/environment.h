// Settings of the driver library by the environment, for whole programs: tests/torch_cuda/on_stand_ins.py lists them.
#pragma once

// Before the devices are opened; nothing where STAND_IN_MIB is not set.
void set_by_environment();
