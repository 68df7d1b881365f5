"""Primitive `execute_python`: a program in the sandbox; its output is the observation."""

import re

from powerinfer.errors import UnsupportedError
from powerinfer.orchestra.primitives._messages import clip, with_inputs
from powerinfer.orchestra.primitives._structured import encodable
from powerinfer.orchestra.primitives.primitive import (
    Call,
    Observation,
    Primitive,
    PrimitiveError,
)
from powerinfer.orchestra.sandbox.child import Ended
from powerinfer.orchestra.sandbox.isolation import PROGRAM, run_isolated
from powerinfer.orchestra.sandbox.limits import Limits

__all__ = ["PRIMITIVE"]

_LIMITS = Limits(seconds=10.0)
_LONGEST = 12_000
_FENCE = re.compile(r"```[^\n`]*\n(?P<code>.*?)(?:```|\Z)", re.DOTALL)
_SYSTEM = (
    "Write a Python program that does the task and prints the answer. It has the standard library, "
    "no network and no files. Give the program alone, in one block of code."
)


async def _run(call: Call) -> Observation:
    if PRIMITIVE.name not in call.permissions.allowed:
        raise PrimitiveError("running code is not allowed; the user allows it (execute_python)")
    try:
        ended = await run_isolated(PROGRAM, (await _program(call)).encode("utf-8"), _LIMITS)
    except UnsupportedError as error:
        raise PrimitiveError(error.message, remedy=error.remedy) from None
    return Observation(
        clip(_told(ended), _LONGEST), ok=ended.code == 0 and ended.limit is None, untrusted=True
    )


async def _program(call: Call) -> str:
    """The program of the query; where it has none that Python can read, the worker writes one."""
    code = _code(call.query)
    if call.ask is not None and not _is_python(code):
        code = _code(await call.ask(with_inputs(call), system=_SYSTEM, max_tokens=1024))
    return encodable(code)


def _code(text: str) -> str:
    fence = _FENCE.search(text)
    return fence["code"] if fence else text


def _is_python(code: str) -> bool:
    """Whether it compiles and is more than a name or a text, as a word of English is."""
    try:
        compile(code, "program.py", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return bool(re.search(r"[(=+*/]", code))


def _told(ended: Ended) -> str:
    output = ended.stdout.decode(errors="replace").strip()
    errors = ended.stderr.decode(errors="replace").strip()
    parts = [output] if output else []
    if ended.limit is not None:
        parts.append(f"[the program was ended at its limit of {ended.limit}]")
    elif ended.code != 0:
        parts.append(errors or f"[the program ended with exit code {ended.code}]")
    return "\n".join(parts) or "[the program printed nothing]"


PRIMITIVE = Primitive(
    name="execute_python",
    summary="runs a Python program without network or files; what it prints is the result",
    needs_model=False,
    leaves_machine=False,
    run=_run,
)
