"""Answers one SQL statement from a database of SQLite that it opens read-only, as JSON on stdout.

Run as `python -I -S query.py` with a JSON object {"path", "sql", "seconds", "memory_bytes"} on
stdin. Nothing of this package can be imported here. It is a process of its own so that its memory
has a limit.
"""

import json
import resource
import sqlite3
import sys
import time
from pathlib import Path
from urllib.parse import quote

_MOST_ROWS = 50
_LONGEST_VALUE = 500
_STEPS = 10_000
_LIMITS = (
    (sqlite3.SQLITE_LIMIT_LENGTH, 16 << 20),
    (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 20_000),
    (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 100),
    (sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 50),
    (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
    (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1_000),
    (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0),
)
_REFUSED_FUNCTIONS = frozenset(
    ("load_extension", "fts3_tokenizer", "readfile", "writefile", "edit")
)
_PRAGMAS = frozenset(
    ("table_info", "table_xinfo", "table_list", "index_list", "index_info", "foreign_key_list")
)
"""Those whose argument names a table or an index; none of them writes."""


def main() -> None:
    """Print {"columns", "rows", "has_more"} or {"error"}."""
    request = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_AS, (request["memory_bytes"],) * 2)
    # No temporary files: what sorting needs is in memory.
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    try:
        answer = _answer(request["path"], request["sql"], request["seconds"])
    except (sqlite3.Error, sqlite3.Warning) as error:
        answer = {"error": str(error).replace("\n", " ")}
    except MemoryError:
        answer = {"error": "the query takes too much memory"}
    print(json.dumps(answer))  # noqa: T201 - this is its result


def _answer(path: str, sql: str, seconds: float) -> dict[str, object]:
    connection = sqlite3.connect(_address(Path(path)), uri=True, isolation_level=None)
    for limit, value in _LIMITS:
        connection.setlimit(limit, value)
    for setting in ("trusted_schema = OFF", "cell_size_check = ON", "temp_store = MEMORY"):
        connection.execute(f"PRAGMA {setting}")
    connection.text_factory = lambda data: data.decode(errors="replace")
    deadline = time.monotonic() + seconds
    connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
    connection.set_authorizer(authorize)
    try:
        cursor = connection.execute(sql)
        rows = cursor.fetchmany(_MOST_ROWS + 1)
    except sqlite3.OperationalError as error:
        if str(error) == "interrupted":
            raise sqlite3.OperationalError("the query takes too long") from None
        raise
    columns = [column[0] for column in cursor.description or ()]
    shown = [[_shown(value) for value in row] for row in rows[:_MOST_ROWS]]
    return {"columns": columns, "rows": shown, "has_more": len(rows) > _MOST_ROWS}


def _address(path: Path) -> str:
    """Address that opens a database without writing anything, beside it neither.

    SQLite would make files beside one in WAL mode. Where no such file is there, nobody writes.
    """
    with path.open("rb") as file:
        is_wal = file.read(20)[18:20] == b"\x02\x02"
    is_closed = is_wal and not path.with_name(path.name + "-wal").exists()
    return f"file:{quote(str(path))}?{'immutable=1' if is_closed else 'mode=ro'}"


def authorize(
    action: int, first: str | None, second: str | None, database: str | None, inner: str | None
) -> int:
    """Allow reading; refuse everything else, what SQLite may add later too."""
    if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE):
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() not in _REFUSED_FUNCTIONS:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_PRAGMA and (first or "").lower() in _PRAGMAS:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _shown(value: object) -> object:
    if isinstance(value, bytes):
        return f"<{len(value):,} bytes>"
    if isinstance(value, str) and len(value) > _LONGEST_VALUE:
        return f"{value[:_LONGEST_VALUE]}[...]"
    return value


if __name__ == "__main__":
    main()
