"""A process that runs subjects as their names come in, one a line, and answers each with a line."""

import gc
import json
import os
import sys
import traceback
import warnings
from dataclasses import asdict

import torch

from op_trial.subjects import subjects
from op_trial.trial import examine


def main() -> None:
    """Until its input ends. The argument is how many samples of a subject are run; 0: all."""
    most_samples = int(sys.argv[1]) or None
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what operators print
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known = {subject.name: subject for subject in subjects()}
    gc.freeze()  # the databases are large
    for line in sys.stdin:
        try:
            row = asdict(examine(known[line.strip()], most_samples))
        except Exception:  # of the trial itself: nothing is proved then
            row = {"subject": line.strip(), "failed": traceback.format_exc()}
        answers.write(json.dumps(row) + "\n")
        gc.collect()


if __name__ == "__main__":
    main()
