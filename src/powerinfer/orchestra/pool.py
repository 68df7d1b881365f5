"""`pool.toml`: the workers, what each may do, and what that costs."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType

from powerinfer.errors import PowerInferError
from powerinfer.orchestra.primitives.primitive import Permissions, Primitive
from powerinfer.orchestra.rules import Offers
from powerinfer.orchestra.state import State
from powerinfer.sidecar.fields import Field

__all__ = ["Cost", "Pool", "PoolError", "WorkerEntry", "default_pool", "offers", "read_pool"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,40}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST_WORKERS = 32
_LARGEST_FILE = 1 << 20
TOOLS = "tools"


class PoolError(PowerInferError):
    """A pool file is malformed or names something that does not exist; says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of a worker; 0 is nothing, or unknown.

    Attributes:
        seconds_per_call: besides those of tokens.
        resident_bytes: memory that the worker takes while it is loaded.
        price_per_million_prompt_tokens: in a currency of your own.
    """

    seconds_per_call: float = 0.0
    seconds_per_prompt_token: float = 0.0
    seconds_per_token: float = 0.0
    joules_per_token: float = 0.0
    resident_bytes: float = 0.0
    price_per_million_prompt_tokens: float = 0.0
    price_per_million_tokens: float = 0.0

    def seconds(self, prompt_tokens: int, tokens: int) -> float:
        """Estimate the seconds of a call."""
        return (
            self.seconds_per_call
            + self.seconds_per_prompt_token * prompt_tokens
            + self.seconds_per_token * tokens
        )

    def price(self, prompt_tokens: int, tokens: int) -> float:
        """Compute the price of a call."""
        per_million = (
            self.price_per_million_prompt_tokens * prompt_tokens
            + self.price_per_million_tokens * tokens
        )
        return per_million / 1e6

    @property
    def rank(self) -> tuple[float, float]:
        """Order of workers by cost: price first, then seconds."""
        return (
            self.price_per_million_tokens + self.price_per_million_prompt_tokens,
            self.seconds_per_token + self.seconds_per_call,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEntry:
    """One worker of the pool.

    Attributes:
        model: name or file of a model; with `base_url` its name there; None: a tool.
        base_url: address of an OpenAI-style API, up to `/v1`; None: on this machine.
        api_key_env: environment variable with the key for that address.
        timeout_s: most seconds of one call.
    """

    name: str
    primitives: tuple[str, ...]
    model: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    cost: Cost = field(default_factory=Cost)
    timeout_s: float = 150.0

    @property
    def is_elsewhere(self) -> bool:
        """Messages to it leave the machine."""
        return self.base_url is not None

    @property
    def is_tool(self) -> bool:
        """It is no model."""
        return self.model is None

    @property
    def is_local_model(self) -> bool:
        """It is a model that is opened here."""
        return self.model is not None and self.base_url is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """All workers.

    Attributes:
        policy: name of the worker that decides, a model of this machine.
        commands: search commands by name.
    """

    workers: tuple[WorkerEntry, ...]
    policy: str
    commands: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> WorkerEntry:
        """Find a worker by its name."""
        return next(each for each in self.workers if each.name == name)

    def with_costs(self, costs: Mapping[str, Cost]) -> "Pool":
        """Replace the costs of workers, by name."""
        workers = (replace(each, cost=costs.get(each.name, each.cost)) for each in self.workers)
        return replace(self, workers=tuple(workers))


def default_pool(model: str | None, primitives: Mapping[str, Primitive]) -> Pool:
    """Make the pool of a model and the tools.

    Args:
        model: name or file; None for the model of the package.
    """
    by_model = tuple(name for name, each in primitives.items() if each.needs_model)
    by_tools = tuple(name for name, each in primitives.items() if not each.needs_model)
    workers = [WorkerEntry(name="model", model=model or "", primitives=by_model)]
    if by_tools:
        workers.append(WorkerEntry(name=TOOLS, primitives=by_tools))
    return Pool(workers=tuple(workers), policy="model")


def read_pool(path: Path, primitives: Mapping[str, Primitive]) -> Pool:
    """Read a pool file.

    Raises:
        PoolError: it is missing or malformed; says where in one line.
    """

    def error(problem: str) -> PoolError:
        return PoolError(f"{path}: {problem}")

    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_FILE + 1)
        if len(text) > _LARGEST_FILE:
            raise error("is larger than 1 MiB: it is no pool file")
        read = tomllib.loads(text.decode("utf-8"))
    except OSError as problem:
        raise error(problem.strerror or str(problem)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise error(f"it is not TOML: {problem}") from None
    return _pool(Field(read, "", error), path.parent, primitives)


def _pool(top: Field, folder: Path, primitives: Mapping[str, Primitive]) -> Pool:
    found = _known(top, ("worker", "policy", "commands"))
    if "worker" not in found:
        top.refuse("it has no worker: add a table [[worker]] with a name and its primitives")
    entries = found["worker"].items(_MOST_WORKERS)
    workers = tuple(_worker(each, folder, primitives) for each in entries)
    names = [each.name for each in workers]
    for name in names:
        if names.count(name) > 1:
            top.refuse(f"there are two workers {name!r}")
    deciders = [each.name for each in workers if each.is_local_model]
    if not deciders:
        top.refuse("no worker is a model of this machine, which the policy needs: add `model`")
    policy = found["policy"].text() if "policy" in found else deciders[0]
    if policy not in deciders:
        found["policy"].fail(f"must be a model of this machine: {', '.join(deciders)}")
    commands = found["commands"].fields() if "commands" in found else {}
    return Pool(
        workers=workers,
        policy=policy,
        commands=MappingProxyType({name: _words(each) for name, each in commands.items()}),
    )


def _worker(entry: Field, folder: Path, primitives: Mapping[str, Primitive]) -> WorkerEntry:
    known = [each.name for each in fields(WorkerEntry)]
    found = _known(entry, known)
    name = entry["name"].text()
    if _NAME.fullmatch(name) is None:
        entry["name"].fail("has other characters than letters, digits, '_', '-' and '.'")
    texts = {key: found[key].text() for key in ("model", "base_url", "api_key_env") if key in found}
    worker = WorkerEntry(
        name=name,
        primitives=_primitives(entry["primitives"], primitives, is_tool="model" not in texts),
        cost=_cost(found["cost"]) if "cost" in found else Cost(),
        timeout_s=found["timeout_s"].number(0.1, 1e6) if "timeout_s" in found else 150.0,
        **texts,
    )
    _check_address(worker, found)
    if worker.is_local_model and worker.model and (folder / worker.model).exists():
        worker = replace(worker, model=str(folder / worker.model))
    return worker


def _check_address(worker: WorkerEntry, found: Mapping[str, Field]) -> None:
    if worker.base_url is None:
        if worker.api_key_env is not None:
            found["api_key_env"].fail("is for a worker with a base_url")
        return
    if worker.model is None:
        found["base_url"].fail("needs a model beside it: its name at that address")
    if not worker.base_url.startswith(("http://", "https://")):
        found["base_url"].fail("must begin with http:// or https://")
    if "@" in worker.base_url:
        found["base_url"].fail("must not contain a name and password: use api_key_env")
    if worker.api_key_env is not None and _VARIABLE.fullmatch(worker.api_key_env) is None:
        found["api_key_env"].fail("must be the name of an environment variable, not a key")


def _primitives(
    listed: Field, primitives: Mapping[str, Primitive], *, is_tool: bool
) -> tuple[str, ...]:
    for item in listed.items(len(primitives)):
        name = item.text()
        if name not in primitives:
            item.fail(f"is {name[:60]!r}, not a primitive: {', '.join(primitives)}")
        if is_tool and primitives[name].needs_model:
            item.fail(f"is {name!r}, which needs a model: give this worker one, or leave it out")
    return tuple(dict.fromkeys(item.text() for item in listed.items()))


def _cost(table: Field) -> Cost:
    found = _known(table, [each.name for each in fields(Cost)])
    return Cost(**{name: each.number(0.0, 1e18) for name, each in found.items()})


def _words(command: Field) -> tuple[str, ...]:
    return tuple(each.text() for each in command.items(100))


def _known(table: Field, names: Sequence[str]) -> dict[str, Field]:
    found = table.fields()
    for name, each in found.items():
        if name not in names:
            each.fail(f"is unknown: use {', '.join(names)}")
    return found


def offers(
    pool: Pool,
    primitives: Mapping[str, Primitive],
    permissions: Permissions,
    state: State | None = None,
) -> Offers:
    """List who may be routed to now, by worker.

    Left out is what needs something that was not allowed, and what could carry untrusted data,
    once there is any, out of the machine. After a verdict that asks for repair, a primitive that
    was tried is offered by other workers only, none of them cheaper, unless nobody is left then.
    """
    state = state or State()
    may_leave = permissions.let_data_leave or not state.tainted
    allowed = {
        worker.name: tuple(
            name
            for name in worker.primitives
            if is_allowed(name, permissions)
            and (may_leave or not leaves_machine(worker, primitives[name]))
        )
        for worker in pool.workers
    }
    dearer = {
        name: tuple(each for each in offered if _is_escalation(pool, state, name, each))
        for name, offered in allowed.items()
    }
    return dearer if any(dearer.values()) else allowed


def leaves_machine(worker: WorkerEntry, primitive: Primitive) -> bool:
    """Tell whether a call may carry data out of the machine."""
    return worker.is_elsewhere or primitive.leaves_machine


def is_allowed(primitive: str, permissions: Permissions) -> bool:
    """Tell whether a primitive has what it needs."""
    needed: Mapping[str, object] = {
        "execute_python": "execute_python" in permissions.allowed,
        "read_document": permissions.documents,
        "database_query": permissions.databases,
        "call_api": permissions.hosts,
        "search": permissions.commands,
    }
    return bool(needed.get(primitive, True))


def _is_escalation(pool: Pool, state: State, worker: str, primitive: str) -> bool:
    """False if this worker, or a dearer one, has tried the primitive in vain."""
    tried = [pool[each.worker].cost.rank for each in state.repairs if each.primitive == primitive]
    is_same = any((each.worker, each.primitive) == (worker, primitive) for each in state.repairs)
    return not is_same and all(rank <= pool[worker].cost.rank for rank in tried)
