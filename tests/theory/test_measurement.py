"""Measurements in theory.jsonl: read as they were written, each round once."""

import math
from dataclasses import fields, replace
from pathlib import Path

import pytest

from trustmix import StorageError
from trustmix.theory.measurement import Measurement, append_measurement, read_measurements

GIVEN = {"round": 1, "method": "uwa", "reference": "model", "clients": 20}
NUMBERS = {field.name: 0.5 for field in fields(Measurement) if field.name not in GIVEN}
MEASUREMENT = Measurement(**GIVEN, **NUMBERS)  # type: ignore[arg-type]


@pytest.mark.parametrize("measurement", [MEASUREMENT, replace(MEASUREMENT, alpha=math.inf, pl=None, label_error=None)])
def test_a_measurement_is_read_as_it_was_written(measurement: Measurement) -> None:
    assert Measurement.from_json(measurement.to_json()) == measurement


def test_a_round_that_is_measured_again_replaces_itself_and_later_ones(tmp_path: Path) -> None:
    assert read_measurements(tmp_path) == []
    for round_, chi in [(1, 0.1), (2, 0.2), (3, 0.3), (2, 0.4)]:
        append_measurement(tmp_path, replace(MEASUREMENT, round=round_, concentration=chi))
    assert [(found.round, found.concentration) for found in read_measurements(tmp_path)] == [(1, 0.1), (2, 0.4)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "is not valid JSON"),
        ("[]", r"holds \[\] where an object"),
        ('{"round": 1}', "is no record of a Measurement; it lacks method"),
        ('{"alpha": 1.0, "colour": "red"}', "it lacks round, method"),
    ],
)
def test_a_line_of_something_else_is_refused_by_its_place(line: str, reason: str, tmp_path: Path) -> None:
    append_measurement(tmp_path, MEASUREMENT)
    with (tmp_path / "theory.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(StorageError, match=rf"theory\.jsonl, line 2.*{reason}"):
        read_measurements(tmp_path)
