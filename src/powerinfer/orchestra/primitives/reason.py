"""Primitive `reason`: the worker thinks step by step; its conclusion is the observation."""

import re

from powerinfer.orchestra.primitives._messages import clip, model_of, with_inputs
from powerinfer.orchestra.primitives.primitive import Call, Observation, Primitive

__all__ = ["PRIMITIVE"]

_SYSTEM = "Solve the task step by step. End with one line: 'Answer:' and the answer alone."
_ANSWER = re.compile(r"^[ *#_]{0,9}answer[ *_]{0,9}:(?P<text>.*)", re.IGNORECASE | re.MULTILINE)
_LONGEST = 4_000


async def _run(call: Call) -> Observation:
    ask = model_of(call, PRIMITIVE.name)
    text = await ask(with_inputs(call), system=_SYSTEM, max_tokens=1024)
    return Observation(clip(_conclusion(text), _LONGEST), untrusted=call.has_untrusted_input)


def _conclusion(text: str) -> str:
    """The text of the last line that begins with "Answer:", else all of it."""
    answers = [answer for found in _ANSWER.findall(text) if (answer := found.strip(" *_\t\r"))]
    return answers[-1] if answers else text.strip()


PRIMITIVE = Primitive(
    name="reason",
    summary="an answer that the worker reaches step by step",
    needs_model=True,
    leaves_machine=False,
    run=_run,
)
