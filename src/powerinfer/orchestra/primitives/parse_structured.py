"""Primitive `parse_structured`: JSON, CSV, TOML or key-value text to JSON, without a model."""

import asyncio

from powerinfer.orchestra.primitives._structured import FORMATS, dump, parse
from powerinfer.orchestra.primitives.primitive import Call, Observation, Primitive

__all__ = ["PRIMITIVE"]


async def _run(call: Call) -> Observation:
    wanted = _wanted(call.query)
    texts = [text for _, text in sorted(call.inputs.items())] or [call.query]
    found = [await asyncio.to_thread(parse, text, wanted) for text in texts]
    text = dump(found[0] if len(found) == 1 else found)
    return Observation(text, untrusted=call.has_untrusted_input)


def _wanted(query: str) -> str | None:
    """The format that the first line of a query names, if it names one alone."""
    words = query.strip().partition("\n")[0].partition("{")[0].lower()
    named = [name for name in FORMATS if name in words]
    return named[0] if len(named) == 1 else None


PRIMITIVE = Primitive(
    name="parse_structured",
    summary="JSON, CSV, TOML or key-value text (the query, or earlier results) to JSON",
    needs_model=False,
    leaves_machine=False,
    run=_run,
)
