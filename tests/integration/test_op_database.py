"""Torch's databases of operators, where every tensor leaves between forward, backward and comparison.

Of tools/op_database.py: the first sample of every sixteenth operator in float32, and a part of the other dtypes, lists,
modules and optimizers; with UMADVISE_FULL=1 all of it. And that the tool sees what it is there to see.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import op_database
import pytest
import torch
from op_trial import children, trial
from op_trial.cases import OpCase
from op_trial.figures import figures, troubles
from op_trial.places import MIB, Leaving, NotAwayError
from op_trial.subjects import OpSubject

import umadvise
from umadvise.errors import UsageError

ALL = bool(os.environ.get("UMADVISE_FULL"))
SAMPLE = [
    ["--dtype", "float32", "--samples", "1", "--part", "1/16", "op *"],
    ["--dtype", "complex64", "--dtype", "bfloat16", "--dtype", "int64", "--samples", "1", "--part", "1/48", "op *"],
    ["--samples", "2", "--part", "1/88", "foreach *", "module *", "optimizer *"],
]


@pytest.mark.parametrize("words", [[]] if ALL else SAMPLE, ids=" ".join)
def test_every_operator_gives_the_bits_of_plain_torch(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    status = op_database.main([*words, "--processes", "1"])
    printed = capsys.readouterr().out
    assert (status, "not repeated" in printed) == (0, True), printed


# ---- what the tool sees --------------------------------------------------------------------------------------------


def examined(call: Callable[[torch.Tensor], torch.Tensor]) -> trial.OpOutcome:
    """What is found of a call with one element."""

    def samples() -> Iterator[list[OpCase]]:
        given = torch.ones(1, requires_grad=True)
        yield [OpCase("call", [given], [given], lambda: call(given))]

    return trial.examine(OpSubject("op made float32", samples))


def test_the_smallest_tensors_leave_and_garbage_is_where_they_were() -> None:
    with Leaving(64 * MIB) as place:
        tensors = [torch.full((1,), float(index)) for index in range(40)]
        before = place.counters()
        place.send_away()
        assert place.counters().pinned_bytes == before.pinned_bytes == 0
        assert torch.empty(100, dtype=torch.uint8).eq(0xA5).all()
        assert torch.cat(tensors[:25]).tolist() == list(range(25))
        assert place.counters().swap_ins - before.swap_ins >= 25
        assert [place.copy(tensor).item() for tensor in tensors] == list(range(40))


def test_what_stays_on_the_device_is_found() -> None:
    with Leaving(64 * MIB) as place:
        array = torch.ones(3).numpy()
        place.send_away()  # what numpy has the address of is left out
        assert array.tolist() == [1, 1, 1]
    with Leaving(64 * MIB, small="stay") as place:
        kept = torch.ones(3)
        with pytest.raises((NotAwayError, RuntimeError)):
            place.send_away()
        assert kept.tolist() == [1, 1, 1]


def test_small_tensors_stay_or_leave_and_nothing_else() -> None:
    with pytest.raises(UsageError, match='unknown small \'go\': expected "stay" or "leave"'):
        umadvise.EmulatedDevice(small="go").options()


def test_other_bits_are_differences() -> None:
    found = examined(lambda x: torch.zeros(2) * (-1 if umadvise.on_device(x) else 1))
    assert [line.partition(": torch")[0] for line in found.differences] == ["0 call: result"]
    assert (found.samples, found.calls, found.departures) == (1, 1, 3)
    found = examined(lambda x: x.mul(2 if umadvise.on_device(x) else 3))
    assert [line.partition(": torch")[0] for line in found.differences] == ["0 call: result", "0 call: gradients"]


def test_errors_are_differences_where_only_one_side_raises() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        if umadvise.on_device(x):
            raise ValueError("of no use")
        return x

    assert "but raised ValueError" in examined(call).differences[0]
    found = examined(lambda x: x.reshape(5))
    assert (found.differences, found.raised) == ([], 1)


def test_what_nobody_wrote_is_not_compared() -> None:
    found = examined(lambda x: torch.empty(5000).add(x.detach()))
    assert (found.differences, found.unrepeated) == ([], ["0 call: result"])


def test_one_that_dies_is_named_and_takes_no_other_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "MOST_SECONDS", 0.0)
    rows = list(children.answers(["op add float32", "op mul float32"], 1, 1))
    assert [row["subject"] for row in rows] == ["op add float32", "op mul float32"]
    assert [troubles(row) for row in rows] == [[f"{row['subject']} DIED: SIGKILL: "] for row in rows]
    assert figures(rows).splitlines()[-2].startswith("all | 2 | 0 | 0 | 0 | 0 | 2 |")


def test_what_was_run_is_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    row = {"subject": "op add float32", "samples": 7, "differences": ["0 call: result"]}
    log.write_text(json.dumps(row) + "\n")
    assert op_database.main(["--log", str(log), "op add float32"]) == 3
    assert "float32 op | 1 | 7 |" in capsys.readouterr().out
