"""Which ratios of benchmarks have moved, and what is written for them."""

import argparse
import json
import sys
from pathlib import Path

import harness
import pytest
import ratios


def test_what_moved_by_more_than_a_tenth_is_told() -> None:
    tracked = {"memory": {"up": 1.0, "down": 1.0, "still": 1.0, "gone": 1.0}}
    found = {"memory": {"up": 1.11, "down": 0.89, "still": 1.09}, "ops": {"new": 2.0}}
    assert list(ratios.moved(tracked, found)) == [
        ("memory", "up", 1.0, 1.11),
        ("memory", "down", 1.0, 0.89),
        ("ops", "new", None, 2.0),
    ]


def test_a_benchmark_replaces_its_own_ratios_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "ratios.json"
    file.write_text(json.dumps({"other": {"a": 1.0}, "mine": {"old": 3.0}}))
    monkeypatch.setattr(sys, "argv", ["tools/mine.py"])
    harness.write_results(argparse.Namespace(json=None, ratios=file), "schema/1", {"new": 1.23456})
    assert json.loads(file.read_text()) == {"other": {"a": 1.0}, "mine": {"new": 1.235}}
    rows = tmp_path / "rows.json"
    harness.write_results(argparse.Namespace(json=rows, ratios=None), "schema/1", {}, rows=[{"x": 1}])
    assert json.loads(rows.read_text()) == {"schema": "schema/1", "rows": [{"x": 1}]}


def test_what_is_tracked_is_of_the_benchmarks_that_run() -> None:
    assert set(json.loads(ratios.TRACKED.read_text())) == set(ratios.QUICK)


@pytest.mark.parametrize("most", range(1, 40))
def test_the_largest_is_found_exactly_or_within_a_part(most: int) -> None:
    assert harness.largest(lambda number: number <= most, 1) == most
    assert most / 1.25 <= harness.largest(lambda number: number <= most, 1, part=5) <= most
