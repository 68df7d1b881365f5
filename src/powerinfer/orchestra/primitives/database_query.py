"""Primitive `database_query`: SQL, or a question that the worker turns into SQL, read-only."""

import json
import os
import re
import sys
from pathlib import Path

from powerinfer.orchestra.primitives._files import check_regular, find_allowed
from powerinfer.orchestra.primitives._messages import clip, with_inputs
from powerinfer.orchestra.primitives._structured import encodable
from powerinfer.orchestra.primitives.primitive import (
    Call,
    Observation,
    Primitive,
    PrimitiveError,
)
from powerinfer.orchestra.sandbox.child import run_program
from powerinfer.orchestra.sandbox.ways import INSIDE
from powerinfer.values import JSONObject

__all__ = ["PRIMITIVE"]

_SECONDS = 5.0
_MEMORY_BYTES = 512 << 20
_OUTPUT_BYTES = 1 << 20
_LONGEST = 8_000
_SQL = re.compile(r"\s*(select|with|values|pragma|explain)\b", re.IGNORECASE)
_FENCE = re.compile(r"```[^\n`]*\n(?P<sql>.*?)(?:```|\Z)", re.DOTALL)
_SCHEMA = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
_SYSTEM = "Write one SELECT statement for SQLite that answers the task. Give the SQL alone."


async def _run(call: Call) -> Observation:
    path, request = _request(call)
    sql = request if _SQL.match(request) else await _written(call, path)
    found = await _query(path, sql)
    return Observation(clip(_table(found), _LONGEST), untrusted=True)


def _request(call: Call) -> tuple[Path, str]:
    """Divide a query into its database and the rest: `NAME: REST`, or REST if one is allowed."""
    databases = call.permissions.databases
    name, colon, rest = call.query.partition(":")
    is_named = colon and name.strip() in {*map(str, databases), *(path.name for path in databases)}
    if not is_named and len(databases) == 1:
        name, rest = str(databases[0]), call.query
    path, below = find_allowed(name.strip(), databases, "database")
    try:
        check_regular(path.stat().st_mode)
    except OSError as error:
        raise PrimitiveError(f"{path.name} cannot be opened: {error.strerror}") from None
    if below:
        raise PrimitiveError(
            f"a database must be allowed by its own path, not {name.strip()[:80]!r}"
        )
    return path.absolute(), rest.strip()


async def _written(call: Call, path: Path) -> str:
    if call.ask is None:
        raise PrimitiveError("database_query by a tool needs SQL that begins with SELECT or WITH")
    rows = (await _query(path, _SCHEMA)).get("rows")
    schema = (
        "\n".join(str(row[0]) for row in rows if isinstance(row, list))
        if isinstance(rows, list)
        else ""
    )
    message = f"Tables:\n{clip(schema, _LONGEST)}\n\n{with_inputs(call)}"
    text = await call.ask(message, system=_SYSTEM, max_tokens=256)
    fence = _FENCE.search(text)
    return (fence["sql"] if fence else text).strip()


async def _query(path: Path, sql: str) -> JSONObject:
    """Answer a statement in a process of its own, whose memory and time are limited.

    Raises:
        PrimitiveError: SQLite refuses it, or it takes too much.
    """
    request = {
        "path": os.fspath(path),
        "sql": encodable(sql),
        "seconds": _SECONDS,
        "memory_bytes": _MEMORY_BYTES,
    }
    ended = await run_program(
        [sys.executable, "-I", "-S", str(INSIDE / "query.py")],
        stdin=json.dumps(request).encode(),
        seconds=_SECONDS + 2,
        output_bytes=_OUTPUT_BYTES,
        env={},
    )
    try:
        answer: JSONObject = json.loads(ended.stdout)
    except ValueError:
        what = f"much {ended.limit}" if ended.limit else "much memory"
        raise PrimitiveError(f"the query takes too {what}") from None
    if "error" in answer:
        raise PrimitiveError(f"SQLite refuses the query: {str(answer['error'])[:300]}")
    return answer


def _table(answer: JSONObject) -> str:
    """Rows as JSON lists, one a line, below the names of the columns."""
    rows = answer["rows"]
    lines = [answer["columns"], *(rows if isinstance(rows, list) else [])]
    more = ["[more rows are left out]"] if answer["has_more"] else []
    return "\n".join((*(json.dumps(line, ensure_ascii=False) for line in lines), *more))


PRIMITIVE = Primitive(
    name="database_query",
    summary="rows of an allowed SQLite database: 'NAME: SELECT ...', or for a model a question",
    needs_model=False,
    leaves_machine=False,
    run=_run,
)
