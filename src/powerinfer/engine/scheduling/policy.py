"""Who joins the next step, and how much of each prompt it computes. Values in, a plan out."""

from collections.abc import Sequence
from dataclasses import dataclass

from powerinfer.engine.scheduling.costs import SMALLEST_CHUNK, StepCosts

__all__ = ["Limits", "Policy", "PolicyState", "Running", "StepPlan", "Waiting"]

_LONGEST_STEP_SECONDS = 0.25
_LONGEST_STEP_DECODES = 4
# What is aimed at is a little less, as no two steps take the same time.
_AIM = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a step may use.

    Attributes:
        parallel: the most sequences that run at once.
        batch_size: the most tokens of prompts in a step.
    """

    parallel: int
    batch_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A request that has not been admitted.

    Attributes:
        id: of the request.
        needs_blocks: what it takes of the free blocks until it ends: those for its prompt and the
            most tokens of its texts, less those that it shares with sequences that run.
        num_pending: tokens of its prompt that are to be computed.
        num_texts: sequences that it runs.
        position: of the first token to compute.
    """

    id: int
    needs_blocks: int
    num_pending: int
    num_texts: int = 1
    position: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A sequence that has been admitted.

    Attributes:
        id: of the sequence. One that computes a prompt has the id of its request.
        arrival: of its request, ascending; equal for the texts of one request.
        is_decoding: it computes one token in every step.
        num_pending: tokens of its prompt that are to be computed; 0 if it is decoding, or paused.
        position: of the first token to compute.
        num_slots: how many sequences it stands for: 1, or those that will share its prompt.
    """

    id: int
    arrival: int
    is_decoding: bool
    num_pending: int = 0
    position: int = 0
    num_slots: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyState:
    """What a plan depends on.

    Attributes:
        waiting: in order of arrival.
        running: in any order.
        free_blocks: that nobody uses and that no running sequence may come to need.
        costs: asked only; only the steps done change them.
        limits: of every step.
    """

    waiting: Sequence[Waiting]
    running: Sequence[Running]
    free_blocks: int
    costs: StepCosts
    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """What the next step does besides one token of every decoding sequence.

    Attributes:
        admit: ids of waiting requests that run from now on, in order of arrival.
        chunks: id of a running or just admitted prompt, and how many of its tokens to compute.
    """

    admit: tuple[int, ...] = ()
    chunks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class _Prompt:
    id: int
    position: int
    num_pending: int


class Policy:
    """Admits requests, and computes as much of their prompts as streams allow, in order of arrival.

    A request is admitted when there are blocks for all that it may come to need, so that nobody has
    to give way later; one that does not fit holds up those behind it, or it might wait forever. A
    step beside decoding sequences takes less than four decode steps or 0.25 s, whichever is longer.
    """

    def plan(self, state: PolicyState) -> StepPlan:
        """What the next step does."""
        admitted = _admitted(state)
        computing = sorted(
            (sequence for sequence in state.running if sequence.num_pending),
            key=lambda sequence: (sequence.arrival, sequence.id),
        )
        prompts = [_Prompt(each.id, each.position, each.num_pending) for each in computing]
        prompts += [_Prompt(each.id, each.position, each.num_pending) for each in admitted]
        return StepPlan(
            admit=tuple(each.id for each in admitted),
            chunks=_shares(prompts, _num_tokens(state, prompts)),
        )


def _admitted(state: PolicyState) -> list[Waiting]:
    admitted = []
    free_slots = state.limits.parallel - sum(sequence.num_slots for sequence in state.running)
    free_blocks = state.free_blocks
    for request in state.waiting:
        free_slots -= request.num_texts
        free_blocks -= request.needs_blocks
        if free_slots < 0 or free_blocks < 0:
            break
        admitted.append(request)
    return admitted


def _num_tokens(state: PolicyState, prompts: Sequence[_Prompt]) -> int:
    """How many tokens of `prompts` the step may compute."""
    chunks = _leading(prompts, state.limits.batch_size)
    num_tokens = sum(count for _, count in chunks)
    decoding = [sequence.position for sequence in state.running if sequence.is_decoding]
    if not decoding or not num_tokens:
        return num_tokens
    decode_seconds = state.costs.decode_seconds(decoding)
    if decode_seconds is None:
        return min(num_tokens, SMALLEST_CHUNK)
    longest = max(_LONGEST_STEP_DECODES * decode_seconds, _LONGEST_STEP_SECONDS)
    return state.costs.num_tokens_within(_AIM * longest - decode_seconds, chunks)


def _leading(prompts: Sequence[_Prompt], num_tokens: int) -> list[tuple[int, int]]:
    """First position and number of the first `num_tokens` tokens of `prompts`."""
    shares = dict(_shares(prompts, num_tokens))
    return [(each.position, shares[each.id]) for each in prompts if each.id in shares]


def _shares(prompts: Sequence[_Prompt], num_tokens: int) -> tuple[tuple[int, int], ...]:
    """How many of `num_tokens` each prompt gets: the first what it needs, the next what is left."""
    shares = []
    for prompt in prompts:
        count = min(prompt.num_pending, num_tokens)
        if count:
            shares.append((prompt.id, count))
        num_tokens -= count
    return tuple(shares)
