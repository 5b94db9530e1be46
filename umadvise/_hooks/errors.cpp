#include "errors.h"

#include "hooks.h"

uint32_t um_hooks_abi_version(void) { return UM_HOOKS_ABI_VERSION; }

const char* um_hooks_last_error(void) { return um::hooks::last_error.c_str(); }
