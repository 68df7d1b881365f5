"""Reader of task files: JSON lines in one of three forms, and tables of sentence pairs.

Files may come from anywhere, so every error names the line.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias, TypeVar

from powerinfer._files import read_small_file
from powerinfer.errors import TaskError
from powerinfer.evaluation.items import Choices, Contexts, Continuation, Item, Items

__all__ = ["read_json_lines", "read_sentence_pairs"]

_LARGEST_FILE = 1 << 30
_FORMS: dict[type[Item], tuple[str, ...]] = {
    Choices: ("query", "choices", "gold"),
    Contexts: ("context_options", "continuation", "gold"),
    Continuation: ("context", "continuation"),
}
_SHOWN = 60

Row: TypeAlias = Mapping[str, object]
T = TypeVar("T")


def read_json_lines(path: Path, form: type[Item] | None = None) -> Items:
    """Read the items of a file with one JSON object on each line, all in the same form.

    Args:
        path: the file; unknown keys and empty lines are ignored.
        form: form of the items; None for that of the first.

    Raises:
        TaskError: the file cannot be read or has no items, or a line is malformed; names the line.
    """
    items: list[Item] = []
    for where, line in _lines(path):
        row = _object(where, line)
        form = _form(where, row, form, ", as in the lines before" if items else "")
        items.append(_READERS[form](where, row))
    return _some(path, items, "one JSON object on each line")


def read_sentence_pairs(path: Path) -> tuple[tuple[str, str, int], ...]:
    """Read first sentence, second sentence and label of each row of a table such as GLUE's RTE.

    Tabs separate the columns. The first line names them; `sentence1`, `sentence2` and `label` are
    read. A label is 0 or `entailment`, 1 or `not_entailment`.
    """
    names: list[str] | None = None
    rows = []
    for where, line in _lines(path):
        cells = [_unquoted(cell) for cell in line.removesuffix("\r").split("\t")]
        if names is None:
            names = cells
            missing = [each for each in ("sentence1", "sentence2", "label") if each not in names]
            if missing:
                raise TaskError(
                    f"{where}: the columns {_beginning(', '.join(names))} lack {missing[0]}; "
                    "expected a table with sentence1, sentence2 and label, divided by tabs"
                )
            continue
        if len(cells) != len(names):
            raise TaskError(f"{where}: {len(cells)} cells, expected {len(names)} as in line 1")
        row = dict(zip(names, cells, strict=True))
        rows.append((row["sentence1"], row["sentence2"], _label(where, row["label"])))
    return _some(path, rows, "a line that names the columns, and rows")


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield place and text of each line that is not empty, without the line end."""
    data = read_small_file(path, _LARGEST_FILE, noun="task file", error=TaskError)
    # Line ends inside a JSON string (U+2028) separate nothing.
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        where = f"{path}:{number}"
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise TaskError(f"{where}: byte {error.start} is not UTF-8") from None
        if text.strip():
            yield where, text


def _object(where: str, line: str) -> Row:
    try:
        row = json.loads(line)
    except RecursionError:
        raise TaskError(f"{where}: JSON is nested too deeply") from None
    except ValueError as error:
        raise TaskError(
            f"{where}: not JSON: {_beginning(str(error))}; expected an object"
        ) from None
    if not isinstance(row, dict):
        raise TaskError(f"{where}: expected a JSON object, got {_beginning(line)}")
    return row


def _form(where: str, row: Row, wanted: type[Item] | None, why: str) -> type[Item]:
    """Return the form of a line; `why` explains the wanted form in messages."""
    forms = _FORMS if wanted is None else {wanted: _FORMS[wanted]}
    for form, keys in forms.items():
        if all(key in row for key in keys):
            return form
    expected = " or ".join(", ".join(keys) for keys in forms.values())
    raise TaskError(
        f"{where}: the keys {_beginning(', '.join(row)) or '(none)'}; expected {expected}{why}"
    )


def _choices(where: str, row: Row) -> Choices:
    choices = _texts(where, row, "choices")
    return Choices(
        _text(where, "query", row["query"], may_be_empty=True),
        tuple(_without_space(where, "choices", choice) for choice in choices),
        _index(where, row, len(choices)),
    )


def _contexts(where: str, row: Row) -> Contexts:
    options = _texts(where, row, "context_options")
    continuation = _text(where, "continuation", row["continuation"])
    return Contexts(
        options,
        _without_space(where, "continuation", continuation),
        _index(where, row, len(options)),
    )


def _continuation(where: str, row: Row) -> Continuation:
    return Continuation(
        _text(where, "context", row["context"], may_be_empty=True),
        _text(where, "continuation", row["continuation"]),
    )


_READERS: dict[type[Item], Callable[[str, Row], Item]] = {
    Choices: _choices,
    Contexts: _contexts,
    Continuation: _continuation,
}


def _texts(where: str, row: Row, key: str) -> tuple[str, ...]:
    values = row[key]
    if not isinstance(values, list):
        raise TaskError(f"{where}: {key} must be a list of texts, got {_shown(values)}")
    if len(values) < 2:
        count = "1 text" if values else "no text"
        raise TaskError(f"{where}: {key} has {count}; expected two or more to choose from")
    return tuple(_text(where, key, value) for value in values)


def _without_space(where: str, key: str, text: str) -> str:
    """Check a text and drop the space in front that would join it."""
    return _text(where, key, text.removeprefix(" "))


def _text(where: str, key: str, value: object, *, may_be_empty: bool = False) -> str:
    if not isinstance(value, str):
        raise TaskError(f"{where}: {key}: expected a text, got {_shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        # JSON can also write half a character of UTF-16, which no file can hold.
        raise TaskError(f"{where}: {key} has half of a surrogate pair") from None
    if not value and not may_be_empty:
        raise TaskError(f"{where}: {key}: a text is empty; expected something to score")
    return value


def _index(where: str, row: Row, count: int) -> int:
    gold = row["gold"]
    if isinstance(gold, bool) or not isinstance(gold, int) or not 0 <= gold < count:
        raise TaskError(
            f"{where}: gold must be the index of one of {count}, from 0 to {count - 1}, got "
            f"{_shown(gold)}"
        )
    return gold


_QUOTED = re.compile(r'"((?:[^"]|"")*)"')
_LABELS = {"0": 0, "1": 1, "entailment": 0, "not_entailment": 1}


def _unquoted(cell: str) -> str:
    """Unquote a cell of a spreadsheet's table; GLUE's own tables have no quotation marks."""
    quoted = _QUOTED.fullmatch(cell)
    return cell if quoted is None else quoted[1].replace('""', '"')


def _label(where: str, text: str) -> int:
    if text not in _LABELS:
        raise TaskError(f"{where}: the label {_beginning(text)}; expected {', '.join(_LABELS)}")
    return _LABELS[text]


def _some(path: Path, items: list[T], expected: str) -> tuple[T, ...]:
    if not items:
        raise TaskError(f"{path}: has no items; expected {expected}")
    return tuple(items)


def _shown(value: object) -> str:
    """Show a value or its beginning."""
    return _beginning(repr(value))


def _beginning(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
