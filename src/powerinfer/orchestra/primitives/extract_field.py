"""Primitive `extract_field`: a field of JSON by its path, or of other text with a model's help."""

import asyncio
import re

from powerinfer.orchestra.primitives._messages import clip
from powerinfer.orchestra.primitives._paths import Path, follow, path_at_start, schema_of
from powerinfer.orchestra.primitives._structured import dump, encodable, parse, read_json
from powerinfer.orchestra.primitives.primitive import (
    Asking,
    Call,
    Observation,
    Primitive,
    PrimitiveError,
)
from powerinfer.values import JSON

__all__ = ["PRIMITIVE"]

_SYSTEM = "Extract the named fields from the text. Use null for what the text does not say."
_LONGEST_TEXT = 12_000
_SEPARATOR = re.compile(r"\s{0,9}(?:\b(?:from|in|of)\b[\s:]*|[:\n]\s*|(?=[{\[]))", re.IGNORECASE)
_DESCRIBED = ("value",)


async def _run(call: Call) -> Observation:
    path, texts = await asyncio.to_thread(_request, call)
    values: list[JSON] = []
    misses: list[PrimitiveError] = []
    for text in texts:
        try:
            values.append(await _field(call, path, text))
        except PrimitiveError as error:
            misses.append(error)
    if not values:
        raise misses[-1]
    # With several results before it, the field is in one of them.
    found = values[0] if len(values) == 1 else values
    text = found if isinstance(found, str) else dump(found)
    return Observation(encodable(text), untrusted=call.has_untrusted_input)


def _request(call: Call) -> tuple[Path | None, list[str]]:
    """Divide a query into its path, None if it describes the field in words, and the texts."""
    path = path_at_start(call.query)
    separator = _SEPARATOR.match(path.rest) if path else None
    if path is not None and path.rest and separator is None:
        path = None
    if call.inputs:
        return path, [text for _, text in sorted(call.inputs.items())]
    if path is not None and separator is not None and separator.end() < len(path.rest):
        return path, [path.rest[separator.end() :]]
    if path is None and call.ask is not None:
        return None, [call.query]
    raise PrimitiveError(
        "extract_field has no text: expected 'PATH' with an earlier result, or 'PATH from TEXT'"
    )


async def _field(call: Call, path: Path | None, text: str) -> JSON:
    if path is not None:
        try:
            return follow(await asyncio.to_thread(parse, text), path.steps)
        except PrimitiveError:
            if call.ask is None or await asyncio.to_thread(_is_json, text):
                raise
    if call.ask is None:
        raise PrimitiveError(f"not a path: {call.query[:80]!r}; expected one such as items[0].name")
    return await _asked(call.ask, call.query, path.steps if path else _DESCRIBED, text)


def _is_json(text: str) -> bool:
    try:
        read_json(text)
    except ValueError:
        return False
    return True


async def _asked(ask: Asking, query: str, steps: tuple[int | str, ...], text: str) -> JSON:
    """The field in the JSON that the worker makes of the text, whose schema has nothing else."""
    message = f"Text:\n{clip(text, _LONGEST_TEXT)}\n\nField: {query[:400]}"
    answer = await ask(message, system=_SYSTEM, json_schema=schema_of(steps))
    try:
        made = read_json(answer)
    except (ValueError, RecursionError):
        raise PrimitiveError(f"the worker did not answer with JSON: {answer[:80]!r}") from None
    value = follow(made, steps)
    if value is None:
        raise PrimitiveError("the worker did not find the field in the text")
    return value


PRIMITIVE = Primitive(
    name="extract_field",
    summary="a field by its path, such as items[0].price, of JSON; of other text with a model",
    needs_model=False,
    leaves_machine=False,
    run=_run,
)
