"""Replays the published tables of profiles/published: predicted, published, error, and what was calibrated.

    python tools/fidelity.py [--tables DIRECTORY] [--sensitivity]
    python tools/fidelity.py --measured FILE...

Only baseline rows calibrate; no row that is judged does. With --measured the rows are those of a file that
tools/gpu_check has written, and judge nothing: it prints how far off each one is. Exit codes: 0 no row lies outside its
bound, 1 a table cannot be read, 2 usage, 3 a row lies outside its bound.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from harness import command_line  # isort: split

from replay import choi, hayakawa, measured, measured_table, published, sensitivity, table, vdnn
from replay.outcome import FigureOutcome, Verdict
from replay.published import Figure

from umadvise.errors import UmadviseError

_REPLAYS: dict[str, Callable[[Iterable[Figure]], Iterator[FigureOutcome]]] = {
    choi.TABLE: choi.replay,
    hayakawa.RESNET_TABLE: hayakawa.replay_resnet,
    hayakawa.MODELS_TABLE: hayakawa.replay_models,
    vdnn.TABLE: vdnn.replay,
}


def replay(figures: Iterable[Figure]) -> Iterator[FigureOutcome]:
    """Predicts every figure, table by table."""
    for name, group in groupby(figures, key=lambda figure: figure.table):
        yield from _REPLAYS[name](group)


def main(words: Sequence[str] | None = None) -> int:
    """Prints the tables."""
    parser = command_line(__doc__)
    parser.add_argument("--tables", type=Path, default=published.DIRECTORY, metavar="DIRECTORY", help="%(default)s")
    parser.add_argument("--sensitivity", action="store_true", help="also halve and double each cost of unified memory")
    parser.add_argument("--measured", type=Path, nargs="+", metavar="FILE", help="instead: what tools/gpu_check wrote")
    options = parser.parse_args(words)
    try:
        if options.measured is not None:
            for line in measured_table.lines(list(measured.compare(measured.read(*options.measured)))):
                print(line)
            return 0
        figures = published.read(options.tables)
        outcomes = list(replay(figures))
    except UmadviseError as error:
        print(f"fidelity: {error}", file=sys.stderr)
        return error.exit_code
    for line in table.lines(outcomes):
        print(line)
    if options.sensitivity:
        runs, _ = choi.calibrated(figure for figure in figures if figure.table == choi.TABLE)
        for line in ("", *sensitivity.lines(runs)):
            print(line)
    return 3 if any(outcome.status is Verdict.FAIL for outcome in outcomes) else 0


if __name__ == "__main__":
    raise SystemExit(main())
