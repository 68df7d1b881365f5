"""Results of `powerinfer bench --quality`, and the file of `-o` that keeps them."""

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from powerinfer._files import read_small_file, write_atomically
from powerinfer.errors import MeasurementError
from powerinfer.sidecar import Field

if TYPE_CHECKING:
    from powerinfer.bench.quality_row import QualityRow
    from powerinfer.evaluation.answers import Answers, TaskRow
    from powerinfer.evaluation.task import Task

__all__ = ["QualityResults", "SettingFigures", "fingerprint", "load_results", "save_results"]

_NOUN = "table of bench --quality"
_VERSION = 1
_MOST_VERSIONS = 1 << 20
_LARGEST_FILE = 1 << 28
# Type of a token id.
_ID_TYPE = np.dtype("<i4")


@dataclass(frozen=True, slots=True)
class SettingFigures:
    """Figures of one setting: `row` on the text, `answers` by name of the task."""

    row: "QualityRow"
    answers: "Mapping[str, Answers]"


@dataclass(slots=True)
class QualityResults:
    """All settings that were measured, the dense model first.

    Attributes:
        subject: facts that runs with the same file must share, by name.
        top_ids: i64[num_scored], the dense model's likeliest tokens; empty before it was measured.
    """

    subject: Mapping[str, str]
    top_ids: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    settings: list[SettingFigures] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """Names of the measured settings."""
        return [each.row.setting for each in self.settings]

    def task_rows(self, task: str) -> "dict[str, TaskRow]":
        """Figures of each setting on a task."""
        from powerinfer.evaluation.answers import compare

        dense = self.settings[0].answers[task]
        return {
            each.row.setting: compare(each.answers[task], dense if number else None)
            for number, each in enumerate(self.settings)
        }

    def rows_as_json(self) -> list[dict[str, object]]:
        """A row for each setting, as JSON values."""
        names = self.settings[0].answers if self.settings else ()
        tasks = {name: self.task_rows(name) for name in names}
        return [
            {
                **asdict(each.row),
                "tasks": {name: asdict(rows[each.row.setting]) for name, rows in tasks.items()},
            }
            for each in self.settings
        ]


def fingerprint(task: "Task") -> str:
    """Hash of the items of a task."""
    return hashlib.sha256(repr((task.name, task.items)).encode()).hexdigest()[:16]


def save_results(path: Path, results: QualityResults) -> None:
    """Write a file, or leave the old one unchanged.

    Raises:
        MeasurementError: it cannot be written.
    """
    from powerinfer.bench.machine import describe_machine

    rows = [
        {**row, "answers": {name: asdict(found) for name, found in each.answers.items()}}
        for row, each in zip(results.rows_as_json(), results.settings, strict=True)
    ]
    content = {
        "version": _VERSION,
        "subject": dict(results.subject),
        "machine": describe_machine(),
        "rows": rows,
        "top_ids": base64.b64encode(results.top_ids.astype(_ID_TYPE).tobytes()).decode(),
    }
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    write_atomically(path, f"{text}\n".encode(), error=MeasurementError)


def load_results(path: Path) -> QualityResults:
    """Read what `save_results` wrote.

    Raises:
        MeasurementError: it cannot be read, or is malformed.
    """
    data = read_small_file(path, _LARGEST_FILE, noun=_NOUN, error=MeasurementError)

    def unusable(problem: str) -> MeasurementError:
        return MeasurementError(
            f"{path}: not a {_NOUN}: {problem}", remedy="name another file with {output}"
        )

    top = Field.parse(data, unusable)
    if top["version"].integer(0, _MOST_VERSIONS) != _VERSION:
        top["version"].fail(f"is not {_VERSION}, which this program reads")
    return _decode(top)


def _decode(top: Field) -> QualityResults:
    fields = top.exactly("version", "subject", "machine", "rows", "top_ids")
    subject = {name: found.text() for name, found in fields["subject"].fields().items()}
    settings = [_setting(row) for row in fields["rows"].items()]
    if not settings or settings[0].row.setting != "off":
        fields["rows"].fail("do not begin with the setting off")
    if any(each.answers.keys() != settings[0].answers.keys() for each in settings):
        fields["rows"].fail("do not all have answers to the same tasks")
    return QualityResults(subject, _ids(fields["top_ids"]), settings)


def _setting(row: Field) -> SettingFigures:
    from powerinfer.bench.quality_row import read_row
    from powerinfer.evaluation.answers import read_answers

    answers = {name: read_answers(found) for name, found in row["answers"].fields().items()}
    return SettingFigures(read_row(row), answers)


def _ids(found: Field) -> npt.NDArray[np.int64]:
    try:
        data = base64.b64decode(found.text(), validate=True)
        return np.frombuffer(data, _ID_TYPE).astype(np.int64)
    except ValueError:
        found.fail("is not base64 of whole numbers")
