"""Primitive `search`: a command that the user configures; its output is the observation."""

import os
import shutil

from powerinfer.orchestra.primitives._leaving import check_may_leave
from powerinfer.orchestra.primitives._messages import clip
from powerinfer.orchestra.primitives.primitive import (
    Call,
    Observation,
    Primitive,
    PrimitiveError,
)
from powerinfer.orchestra.sandbox.child import run_program

__all__ = ["PRIMITIVE"]

_PLACE = "{query}"
_SECONDS = 30.0
_OUTPUT_BYTES = 256 << 10
_LONGEST = 8_000
_VARIABLES = ("PATH", "HOME", "LANG")


async def _run(call: Call) -> Observation:
    check_may_leave(call, PRIMITIVE.name)
    name, argv = _command(call)
    env = {key: os.environ[key] for key in _VARIABLES if key in os.environ}
    try:
        ended = await run_program(argv, seconds=_SECONDS, output_bytes=_OUTPUT_BYTES, env=env)
    except OSError as error:
        raise PrimitiveError(f"the command of {name} cannot be started: {error.strerror}") from None
    if ended.limit == "time" or (ended.code != 0 and ended.limit is None):
        errors = ended.stderr.decode(errors="replace").strip().splitlines()
        why = f"takes more than {_SECONDS:g} s" if ended.limit else f"ended with {ended.code}"
        raise PrimitiveError(f"the command of {name} {why}: {errors[-1][:200] if errors else ''}")
    text = ended.stdout.decode(errors="replace").strip()
    return Observation(clip(text, _LONGEST) or "[nothing was found]", untrusted=True)


def _command(call: Call) -> tuple[str, list[str]]:
    """Name and argument list of the command that a query, `NAME: WORDS` or WORDS, asks for."""
    commands = call.permissions.commands
    if not commands:
        raise PrimitiveError("no search command is configured; the user names one and its program")
    name, colon, words = call.query.partition(":")
    if not (colon and name.strip() in commands):
        name, words = next(iter(commands)), call.query
    # One argument, through no shell, and never an option of the program.
    query = " ".join(words.replace("\0", " ").split()).lstrip("-").lstrip()
    if not query:
        raise PrimitiveError("search has no words; expected 'WORDS' or 'NAME: WORDS'")
    argv = list(commands[name.strip()])
    filled = [part.replace(_PLACE, query) for part in argv]
    argv = filled if filled != argv else [*argv, query]
    return name.strip(), [shutil.which(argv[0]) or argv[0], *argv[1:]]


PRIMITIVE = Primitive(
    name="search",
    summary="asks a search command that the user configured: 'WORDS', or 'NAME: WORDS' of several",
    needs_model=False,
    leaves_machine=True,
    run=_run,
)
