"""List the devices that things can be predicted for, show where each number comes from, or measure this machine.

NAME is a device of the catalogue or a device file; without it, all of the catalogue are listed.
"""

import argparse
from typing import TYPE_CHECKING

from umadvise.commands._messages import COMMAND, show, terminal_width
from umadvise.errors import UsageError

if TYPE_CHECKING:
    from umadvise.records.device import DeviceProfile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A device, or the machine at hand."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="a name or alias of the catalogue, or a .toml file")
    parser.add_argument("--json", action="store_true", help="print data instead of text")
    parser.add_argument("--probe", action="store_true", help="measure the device at hand and print its device file")
    parser.add_argument(
        "--device",
        choices=("auto", "cuda", "emulated"),
        help="what to measure; auto, the default, is CUDA where there is one, else the emulated device",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write what was measured to a file")


def run(arguments: argparse.Namespace) -> int:
    """Prints the catalogue, one device of it, or the one at hand."""
    if arguments.probe and arguments.name is not None:
        raise UsageError("--probe measures the device at hand: expected no NAME with it")
    if not arguments.probe and (arguments.output, arguments.device) != (None, None):
        raise UsageError("-o and --device go with --probe: expected it too")
    from umadvise.devices.catalogue import device_names, encode, load_device
    from umadvise.records.files import write_atomically
    from umadvise.reports.reporters import devices
    from umadvise.reports.reporters.printing import DEFAULT_WIDTH

    width = terminal_width(DEFAULT_WIDTH)
    if arguments.probe:
        measured = _measure(arguments.device or "auto")
        if arguments.output is not None:
            write_atomically(arguments.output, encode(measured))
            COMMAND.info("measured %s: %s", measured.label.removesuffix(", measured"), arguments.output)
        else:
            show(measured, lambda: encode(measured).decode(), as_json=arguments.json)
    elif arguments.name is not None:
        profile = load_device(arguments.name)
        show(profile, lambda: devices.render_device(profile, width), as_json=arguments.json)
    else:
        profiles = [load_device(name) for name in device_names()]
        listed = {"schema": "umadvise.devices/1", "devices": profiles}
        show(listed, lambda: devices.render_list(profiles, width), as_json=arguments.json)
    return 0


def _measure(wanted: str) -> "DeviceProfile":
    from umadvise._native import cuda_unavailable_reason
    from umadvise.devices.open_device import open_device
    from umadvise.devices.probe import probe

    if wanted == "auto" and (reason := cuda_unavailable_reason()) is not None:
        COMMAND.info("no CUDA device (%s): measuring the emulated one", reason)
        wanted = "emulated"
    device = open_device(wanted)
    try:
        return probe(device)
    finally:
        device.close()
