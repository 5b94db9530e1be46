"""`umadvise simulate` on a hand-made step whose times can be worked out: ops of known length on a V100."""

import json
from pathlib import Path

import pytest

from umadvise.__main__ import main
from umadvise.planners.judging.prediction import WAYS
from umadvise.recording.builder import TraceBuilder
from umadvise.records import trace_file as io
from umadvise.records.enums import Phase, Role
from umadvise.records.trace import Access, OpClass

GIB = 1 << 30
OP_NS = 4000 + 10**9
"""A second of arithmetic at 80 % of a V100's 14 TFLOP/s, and its launch."""


def chain(path: Path, count: int, bytes_: int) -> Path:
    """Each op makes a storage from the last one's; all live until the end."""
    builder, live = TraceBuilder(), []
    weight = builder.allocate(GIB, Role.PARAMETER, "weight")
    for _ in range(count):
        builder.begin_op("aten::mm", op_class=OpClass.MATMUL, flops=int(14e12 * 0.8))
        live.append(builder.allocate(bytes_, Role.INTERMEDIATE))
        builder.access(weight, Access.READ)
        if len(live) > 1:
            builder.access(live[-2], Access.READ)
        builder.access(live[-1], Access.WRITE | Access.WHOLE)
        builder.end_op()
    for storage in live:
        builder.free(storage)
    io.write(builder.finish(target="cuda", source="synthetic", workload="chain"), path)
    return path


def simulate(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["simulate", *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_what_fits_takes_its_compute_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(chain(tmp_path / "a.trace", 4, GIB))
    code, out, err = simulate(capsys, path, "--target", "v100-16gb", "--json")
    assert (code, err) == (0, "")
    prediction = json.loads(out)
    assert prediction["schema"] == "umadvise.prediction/1"
    ways = {way["name"]: way for way in prediction["ways"]}
    assert tuple(ways) == WAYS
    for name in ("resident", "swap"):
        assert ways[name]["step_ns"] == ways[name]["compute_ns"] == 4 * OP_NS
    assert ways["resident"]["needed_bytes"] == 5 * GIB
    assert ways["swap"]["needed_bytes"] == 5 * 52 * 20 * 2**20  # in chunks of 20 MiB
    assert ways["noadvise"]["fault_groups"] == 0
    assert ways["noadvise"]["step_ns"] == 4 * OP_NS


def test_what_does_not_fit_moves_and_stalls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(chain(tmp_path / "b.trace", 6, 4 * GIB))
    code, out, _ = simulate(capsys, path, "--target", "v100-16gb", "--json")
    ways = {way["name"]: way for way in json.loads(out)["ways"]}
    assert code == 0
    assert ways["resident"]["problem"] == "does not fit"
    assert ways["resident"]["needed_bytes"] == 25 * GIB
    for name in ("noadvise", "advise", "swap"):
        assert ways[name]["step_ns"] > ways[name]["compute_ns"] == 6 * OP_NS
        assert ways[name]["bytes_d2h"] >= 25 * GIB - 16 * GIB
        assert ways[name]["step_ns"] - ways[name]["compute_ns"] >= sum(ways[name]["stalls"].values()) * 0.99


def test_ranks_divide_the_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(chain(tmp_path / "b.trace", 6, 4 * GIB))

    def stalled_ns(*words: str) -> float:
        code, out, _ = simulate(capsys, path, "--target", "v100-16gb", "--json", *words)
        assert code == 0
        way = next(way for way in json.loads(out)["ways"] if way["name"] == "swap")
        return float(way["step_ns"] - way["compute_ns"])

    assert stalled_ns("--ranks", "8") > 7 * stalled_ns()
    assert stalled_ns("--ranks", "1") == stalled_ns()


def test_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = simulate(capsys, str(chain(tmp_path / "c.trace", 6, 4 * GIB)), "--target", "k40")
    assert code == 0
    assert out.startswith("chain in ")
    assert "resident: does not fit, it needs 25.00 GiB" in out
    assert "cannot page unified memory" in out
    assert "swap on demand" in out


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([], 2, "name one with --target"),
        (["--target", "voodoo-2"], 2, "voodoo-2"),
        (["--target", "v100-16gb", "--budget", "99GiB"], 2, "more than v100-pcie-16gb leaves"),
        (["--target", "v100-16gb", "--budget", "lots"], 2, "lots"),
        (["--target", "v100-16gb", "--budget", "0"], 2, "at least two blocks"),
        (["--target", "v100-16gb", "--step", "7"], 2, "no step 7"),
        (["--target", "v100-16gb", "--input-advice", "hurry"], 2, "unknown advice 'hurry'"),
        (["--target", "v100-16gb", "--iterations", "0"], 2, "0 iterations"),
        (["--target", "v100-16gb", "--ranks", "0"], 2, "--ranks 0: expected 1 to 64"),
    ],
)
def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, says: str) -> None:
    given = simulate(capsys, str(chain(tmp_path / "d.trace", 1, 1 << 20)), *words)
    assert given[0] == code
    assert given[1] == ""
    assert says in given[2]


def run_of(path: Path, steps: int) -> Path:
    """What `umadvise run --record` keeps of a loop that reads its loss after each update."""
    builder = TraceBuilder()
    weight = builder.allocate(GIB, Role.PARAMETER, "weight")
    for step in range(1, steps + 2):
        builder.begin_op("aten::_local_scalar_dense", step=step, phase=Phase.FORWARD, duration_ns=1)
        builder.access(weight, Access.READ)
        builder.end_op()
        for phase in (Phase.FORWARD, Phase.OPTIMIZER) if step <= steps else ():
            builder.begin_op("aten::mul_", step=step, phase=phase, flops=int(14e12 * 0.8), op_class=OpClass.MATMUL)
            builder.access(weight, Access.READ | Access.WRITE)
            builder.end_op()
    io.write(builder.finish(target="cuda", source="live", device="voodoo 2", workload="loop"), path)
    return path


def test_what_comes_after_the_last_update_is_no_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(run_of(tmp_path / "f.trace", 3))
    _, last, _ = simulate(capsys, path, "--target", "v100-16gb")
    assert last == simulate(capsys, path, "--target", "v100-16gb", "--step", "3")[1]
    assert last != simulate(capsys, path, "--target", "v100-16gb", "--step", "4")[1]


def test_a_run_on_another_device_needs_a_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = simulate(capsys, str(run_of(tmp_path / "g.trace", 1)))
    assert (code, out) == (2, "")
    assert "recorded on 'voodoo 2', which is not in the catalogue: name one with --target" in err


def test_a_file_that_is_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "e.trace").write_text("{}")
    code, out, err = simulate(capsys, str(tmp_path / "e.trace"), "--target", "v100-16gb")
    assert (code, out) == (1, "")
    assert "is no trace" in err
