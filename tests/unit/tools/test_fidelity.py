"""The published tables: read whole or refused, judged against their bounds, and one memory row from end to end."""

from pathlib import Path

import fidelity
import pytest
import torch
from replay import outcome, published, step_time, table
from replay.network_wide import network_wide
from replay.outcome import Verdict
from replay.published import Figure
from torch import nn

from umadvise.errors import FormatError
from umadvise.recording.workload import Workload, training_step

FIGURE = Figure("vdnn", 2, ("alexnet", "", "baseline", "memory"), 1.1, 1.1, "GB")
HEADER = "network,batch,policy,quantity,value,unit\n"


def write(directory: Path, *rows: str, name: str = "vdnn.csv", header: str = HEADER) -> Path:
    (directory / name).write_text(header + "".join(f"{row}\n" for row in rows))
    return directory


# ---- reading ---------------------------------------------------------------------------------------------------------


def test_every_line_of_every_table_is_a_figure_and_lines_of_factors_are_three() -> None:
    figures = published.read()
    lines = {path.stem: len(path.read_text().splitlines()) - 1 for path in Path(published.DIRECTORY).glob("*.csv")}
    counts = {name: sum(figure.table == name for figure in figures) for name in lines}
    assert lines["hayakawa_models"] == 3
    assert counts == {**lines, "hayakawa_models": 9}
    assert len({(figure.table, figure.key) for figure in figures}) == len(figures)


def test_out_of_memory_is_no_number_and_a_range_has_two_ends() -> None:
    figures = {(figure.table, figure.key): figure for figure in published.read()}
    out_of_memory = figures["hayakawa_resnet50", ("baseline", "V100-16GB", "256")]
    assert (out_of_memory.low, out_of_memory.high) == (None, None)
    with pytest.raises(FormatError, match="line 16"):
        _ = out_of_memory.middle
    factor = figures["hayakawa_models", ("pix2pixhd", "512x1024", "va_extra_factor")]
    assert (factor.low, factor.high, factor.middle) == (1.5, 2.0, 1.75)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (("alexnet,,baseline,memory,lots,GB",), "line 2: expected a number or 'x', found 'lots'"),
        (("alexnet,,baseline,memory,nan,GB",), "line 2: expected a number"),
        (("alexnet,,baseline,memory",), "line 2: expected 6 columns"),
        (("alexnet,,baseline,memory,1.1,GB,more",), "line 2: expected 6 columns"),
    ],
)
def test_a_damaged_line_is_refused_by_its_number(tmp_path: Path, rows: tuple[str, ...], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        published.read(write(tmp_path, *rows))


def test_tables_that_nobody_knows_or_that_lack_a_column_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no tables"):
        published.read(tmp_path)
    with pytest.raises(FormatError, match="no column value"):
        published.read(write(tmp_path, header="network,batch\n"))
    with pytest.raises(FormatError, match="no such table"):
        published.read(write(tmp_path, name="a.csv"))


# ---- judging ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("predicted", "status"), [(1.20, Verdict.PASS), (1.22, Verdict.FAIL), (1.0, Verdict.PASS), (0.98, Verdict.FAIL)]
)
def test_a_prediction_passes_within_its_share_of_the_published_number(predicted: float, status: Verdict) -> None:
    assert outcome.within(FIGURE, predicted, 0.10).status is status


def test_calibration_and_pending_judge_nothing_however_far_off() -> None:
    outcomes = [outcome.calibration(FIGURE, 100, "set"), outcome.pending(FIGURE, "a planner")]
    assert [each.status for each in outcomes] == [Verdict.CALIBRATION, Verdict.PENDING]
    assert table.summary(outcomes) == "2 figures: 0 PASS, 0 FAIL, 1 pending, 1 calibration"


def test_the_fit_finds_what_made_the_times() -> None:
    roofline = [0.1, 0.2, 0.3]
    time = step_time.fit(roofline, [0.05 + seconds / 1.6 for seconds in roofline])
    assert (time.fixed_s, time.efficiency) == pytest.approx((0.05, 1.6))
    without = step_time.fit(roofline, [seconds - 0.01 for seconds in roofline])  # would want less than nothing fixed
    assert without.fixed_s == 0
    assert without.seconds(0.2) == pytest.approx(0.19, rel=0.02)


def test_the_window_papers_baseline_is_a_fixed_time_and_one_an_image() -> None:
    batches, speeds = (64, 128, 190), (336, 492, 581)
    time = step_time.fit(batches, [batch / speed for batch, speed in zip(batches, speeds, strict=True)])
    for batch, speed in zip(batches, speeds, strict=True):
        assert batch / time.seconds(batch) == pytest.approx(speed, rel=0.01)


# ---- the network-wide baseline ---------------------------------------------------------------------------------------


def small_network() -> Workload:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 20 * 20, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return training_step(model, optimizer, lambda net, images: net(images).sum(), torch.zeros(2, 3, 40, 40))


def test_the_network_wide_baseline_of_a_network_that_can_be_added_up_by_hand() -> None:
    memory = network_wide(small_network)
    image, convolution, pooling, full = 2 * 3 * 40 * 40, 2 * 8 * 40 * 40, 2 * 8 * 20 * 20, 2 * 10
    weights = 3 * 8 * 9 + 8 + 3200 * 10 + 10
    assert memory.feature_maps == 4 * (image + convolution + pooling + full)
    assert memory.weights == memory.weight_gradients == 4 * weights
    assert memory.gradient_maps == 2 * 4 * convolution
    # 42 x 42 with padding: tiles of 32 that advance by 30, two each way; 32 x 17 complex numbers for each map in one.
    assert memory.workspace == (4 * 2 * (3 + 8) + 3 * 8) * 32 * 17 * 8
    assert memory.extraction_share == pytest.approx(1 - 4 * (2 * 32010 + full) / memory.total)


# ---- the command -----------------------------------------------------------------------------------------------------


def test_a_memory_row_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fidelity.main(["--tables", str(write(tmp_path, "alexnet,,baseline,memory,1.1,GB"))]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "vdnn.csv"
    assert printed[2].split() == ["alexnet", "baseline", "memory", "1.183", "1.1", "GB", "+7.5%", "10%", "PASS"]
    assert printed[-1] == "1 figures: 1 PASS, 0 FAIL, 0 pending, 0 calibration"


def test_a_doctored_row_fails_and_the_command_exits_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fidelity.main(["--tables", str(write(tmp_path, "alexnet,,baseline,memory,2.2,GB"))]) == 3
    assert "FAIL" in capsys.readouterr().out.splitlines()[2]


@pytest.mark.parametrize(
    ("name", "header", "row", "message"),
    [
        ("vdnn.csv", HEADER, "lenet,,baseline,memory,1,GB", "line 2: unknown word 'lenet'"),
        ("vdnn.csv", HEADER, "alexnet,,some,max_memory,1,GB", "line 2: unknown word 'some'"),
        ("vdnn.csv", HEADER, "alexnet,,dyn,charm,1,GB", "line 2: unknown word 'charm'"),
        (
            "hayakawa_resnet50.csv",
            "method,gpu,batch,images_per_s\n",
            "baseline,K80,64,30",
            "line 2: unknown word 'K80'",
        ),
        (
            "choi_bert_large.csv",
            "quantity,batch,parameters,inputs,intermediates,value,unit\n",
            "step_time,16,noadvise,noadvise,noadvise,0.9,s",
            "expected one step_time with none_no_unified_memory, which calibrates, found 0",
        ),
    ],
)
def test_a_row_that_says_nothing_known_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, header: str, row: str, message: str
) -> None:
    assert fidelity.main(["--tables", str(write(tmp_path, row, name=name, header=header))]) == 1
    assert message in capsys.readouterr().err


def test_a_table_that_cannot_be_read_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fidelity.main(["--tables", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("fidelity: no tables in ")
