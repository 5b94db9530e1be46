"""A module as nvidia-ml-py has it, for a machine with two GPUs of which the second is an H200."""

import types
from typing import Any

GIB = 1 << 30
SLOTS = ("00000000:01:00.0", "00000000:41:00.0")


class Answer(types.SimpleNamespace):
    """A structure that NVML fills."""


def fake_nvml(**functions: Any) -> types.ModuleType:
    """The module; `functions` replace its own by name. An answer of None stands for "Not Supported"."""

    class NVMLError(Exception):
        pass

    def answering(answer: Any) -> Any:
        def function(*_arguments: Any) -> Any:
            if answer is None:
                raise NVMLError("Not Supported")
            return answer

        return function

    def by_slot(address: str) -> int:
        if address not in SLOTS:
            raise NVMLError("Not Found")
        return SLOTS.index(address)

    module: Any = types.ModuleType("pynvml")
    module.NVMLError = NVMLError
    module.running = 0

    def start() -> None:
        module.running += 1

    def stop() -> None:
        module.running -= 1

    module.nvmlInit, module.nvmlShutdown = start, stop
    module.nvmlSystemGetDriverVersion = answering("595.45.04")
    module.nvmlDeviceGetCount = answering(2)
    module.nvmlDeviceGetHandleByIndex = lambda index: index
    module.nvmlDeviceGetHandleByPciBusId = by_slot
    module.nvmlDeviceGetName = [b"NVIDIA T4", "NVIDIA H200"].__getitem__
    module.nvmlDeviceGetMemoryInfo = answering(Answer(total=140 * GIB, free=100 * GIB, used=40 * GIB))
    module.nvmlDeviceGetCurrPcieLinkGeneration = answering(1)
    module.nvmlDeviceGetCurrPcieLinkWidth = answering(16)
    module.nvmlDeviceGetMaxPcieLinkGeneration = answering(5)
    module.nvmlDeviceGetMaxPcieLinkWidth = answering(16)
    module.nvmlDeviceGetPcieThroughput = lambda _, counter: [250, 1000][counter]
    module.nvmlDeviceGetComputeRunningProcesses = answering(
        [Answer(pid=71, usedGpuMemory=None), Answer(pid=70, usedGpuMemory=39 * GIB)]
    )
    module.nvmlDeviceGetMigMode = answering([0, 0])
    module.nvmlDeviceGetVirtualizationMode = answering(0)
    module.nvmlDeviceGetMaxClockInfo = lambda _, kind: {1: 1980, 2: 3201}[kind]
    module.nvmlDeviceGetMemoryBusWidth = answering(6144)
    module.nvmlDeviceGetNumGpuCores = answering(None)
    for name, function in functions.items():
        setattr(module, name, function if callable(function) else answering(function))
    return module
