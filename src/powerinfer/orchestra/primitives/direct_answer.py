"""Primitive `direct_answer`: the worker answers at once."""

from powerinfer.orchestra.primitives._messages import model_of, with_inputs
from powerinfer.orchestra.primitives.primitive import Call, Observation, Primitive

__all__ = ["PRIMITIVE"]

_SYSTEM = "Answer briefly. Give the answer alone, without explaining it."


async def _run(call: Call) -> Observation:
    ask = model_of(call, PRIMITIVE.name)
    answer = await ask(with_inputs(call), system=_SYSTEM, max_tokens=256)
    return Observation(answer.strip(), untrusted=call.has_untrusted_input)


PRIMITIVE = Primitive(
    name="direct_answer",
    summary="a short answer from what the worker knows",
    needs_model=True,
    leaves_machine=False,
    run=_run,
)
