"""List the devices that things can be predicted for, show where each number comes from, or measure this machine.

NAME is a device of the catalogue or a device file; without it, all of the catalogue are listed.
"""

import argparse
import shutil
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A device, or the machine at hand."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="a name or alias of the catalogue, or a .toml file")
    parser.add_argument("--json", action="store_true", help="print data instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Prints the catalogue or one device of it."""
    from umadvise.catalogue import device_names, load_device
    from umadvise.reporters import devices

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else devices.DEFAULT_WIDTH
    if arguments.name is None:
        profiles = [load_device(name) for name in device_names()]
        print(devices.json_list(profiles) if arguments.json else devices.render_list(profiles, width), end="")
    else:
        profile = load_device(arguments.name)
        print(devices.json_device(profile) if arguments.json else devices.render_device(profile, width), end="")
    return 0
