"""Primitive `fact_check`: whether given documents support a claim, and by which words."""

import asyncio

from powerinfer.orchestra.primitives._files import read_text
from powerinfer.orchestra.primitives._messages import model_of
from powerinfer.orchestra.primitives._passages import best_passages
from powerinfer.orchestra.primitives._structured import encodable, read_json
from powerinfer.orchestra.primitives.primitive import (
    Call,
    Observation,
    Primitive,
    PrimitiveError,
)

__all__ = ["PRIMITIVE", "VERDICT_SCHEMA"]

_LONGEST = 8_000
_VERDICTS = ("supported", "refuted", "not enough evidence")
VERDICT_SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"quote": {"type": "string"}, "verdict": {"enum": list(_VERDICTS)}},
    "required": ["quote", "verdict"],
    "additionalProperties": False,
}
"""Form of the worker's answer: the words of a document first, then what they decide."""
_SYSTEM = (
    "Judge the claim by the documents alone. Quote the words of a document that decide it, and say "
    "whether they support or refute the claim. Without such words there is not enough evidence."
)


async def _run(call: Call) -> Observation:
    ask = model_of(call, PRIMITIVE.name)
    documents = await asyncio.to_thread(_documents, call)
    parts = best_passages(documents, call.query, _LONGEST)
    message = f"Documents:\n{parts}\n\nClaim: {call.query}"
    answer = await ask(message, system=_SYSTEM, max_tokens=400, json_schema=VERDICT_SCHEMA)
    verdict, quote = _judged(answer)
    # Documents that are read here are as untrusted as those that read_document reads.
    is_untrusted = call.has_untrusted_input or not call.inputs
    return Observation(encodable(_told(verdict, quote, parts)), untrusted=is_untrusted)


def _documents(call: Call) -> str:
    """Results of earlier subtasks; without any, the documents that the user allows."""
    if call.inputs:
        return "\n\n".join(text for _, text in sorted(call.inputs.items()))
    files = [path for path in call.permissions.documents if path.is_file()]
    if not files:
        raise PrimitiveError(
            "fact_check has no documents: expected earlier results or allowed files"
        )
    return "\n\n".join(read_text(path, ()) for path in files)


def _judged(answer: str) -> tuple[str, str]:
    try:
        found = read_json(answer)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("verdict") not in _VERDICTS:
        raise PrimitiveError(f"the worker did not answer with a verdict: {answer[:80]!r}")
    return str(found["verdict"]), str(found.get("quote", ""))


def _told(verdict: str, quote: str, documents: str) -> str:
    if verdict == _VERDICTS[-1]:
        return verdict
    # A small model makes quotes up; what no document says decides nothing.
    if not quote.strip() or _plain(quote) not in _plain(documents):
        return f"{_VERDICTS[-1]} (the worker says {verdict}, but its quote is in no document)"
    return f"{verdict}: {quote.strip()!r}"


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


PRIMITIVE = Primitive(
    name="fact_check",
    summary="whether earlier results or allowed documents support a claim, with a quote",
    needs_model=True,
    leaves_machine=False,
    run=_run,
)
