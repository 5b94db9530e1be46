"""Runs programs of a file, one after another in one process: starting torch takes longer than most of them do."""

import gc
import json
import sys
import traceback
from collections.abc import Mapping
from typing import Any

import torch


def main(programs: Mapping[str, Any]) -> None:
    """Prints as JSON what each call gives, by its words; what raises has its error in its place.

    The first argument is a list of calls: each one is the name of a program and its words.

    Args:
        programs: by name.
    """
    torch.set_num_threads(1)
    found = {}
    for call in json.loads(sys.argv[1]):
        name, *words = call.split()
        print(call, file=sys.stderr, flush=True)  # where the process dies, the last one is to blame
        try:
            found[call] = programs[name](*words)
        except Exception:
            found[call] = {"error": traceback.format_exc()}
        gc.collect()
    print(json.dumps(found))
