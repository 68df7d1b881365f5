"""Primitive `symbolic_math`: exact mathematics by sympy, in the sandbox."""

import asyncio
import importlib.util
import json
from pathlib import Path

from powerinfer._extras import how_to_install
from powerinfer.errors import UnsupportedError
from powerinfer.orchestra.primitives._expressions import expression_tree
from powerinfer.orchestra.primitives._messages import clip, with_inputs
from powerinfer.orchestra.primitives.primitive import (
    Call,
    Observation,
    Primitive,
    PrimitiveError,
)
from powerinfer.orchestra.sandbox.child import Ended
from powerinfer.orchestra.sandbox.isolation import SYMBOLIC, run_isolated
from powerinfer.orchestra.sandbox.limits import Limits
from powerinfer.values import JSON

__all__ = ["PRIMITIVE"]

_LIMITS = Limits(seconds=10.0, processes=1)
_LONGEST = 4_000
_MODULES = ("sympy", "mpmath")
_SYSTEM = (
    "Write the task as one expression for sympy and nothing else, such as solve(x**2 = 4, x), "
    "integrate(sin(x), x, 0, pi), diff(x**3, x), limit(sin(x)/x, x, 0), sum(k**2, k, 1, 10), "
    "factor(x**2 - 1), simplify(...), N(pi, 20), or arithmetic."
)


async def _run(call: Call) -> Observation:
    shown = _modules()
    tree = await _tree(call)
    try:
        ended = await run_isolated(SYMBOLIC, json.dumps(tree).encode(), _LIMITS, shown)
    except UnsupportedError as error:
        raise PrimitiveError(error.message, remedy=error.remedy) from None
    return Observation(clip(_answer(ended), _LONGEST), untrusted=call.has_untrusted_input)


async def _tree(call: Call) -> JSON:
    """The expression of the query; where it is none, the worker writes one."""
    try:
        return await asyncio.to_thread(expression_tree, call.query)
    except PrimitiveError:
        if call.ask is None:
            raise
    written = await call.ask(with_inputs(call), system=_SYSTEM, max_tokens=256)
    return await asyncio.to_thread(expression_tree, written)


def _modules() -> dict[Path, Path]:
    """Folders of sympy and of what it needs, by their paths in the sandbox."""
    found = {}
    for name in _MODULES:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise PrimitiveError(f"{name} is not installed", remedy=how_to_install("orchestra"))
        found[Path("/modules") / name] = Path(spec.submodule_search_locations[0]).resolve()
    return found


def _answer(ended: Ended) -> str:
    if ended.limit is not None:
        raise PrimitiveError(f"the expression takes too much {ended.limit}")
    try:
        answer = json.loads(ended.stdout)
    except ValueError:
        # Only a limit of the processor's or of memory ends it without an answer.
        raise PrimitiveError("the expression takes too much memory") from None
    if "error" in answer:
        raise PrimitiveError(str(answer["error"]).replace("\n", " "))
    return str(answer["text"])


PRIMITIVE = Primitive(
    name="symbolic_math",
    summary="exact arithmetic, algebra and calculus: solve, factor, integrate, diff, limit, sum",
    needs_model=False,
    leaves_machine=False,
    run=_run,
)
