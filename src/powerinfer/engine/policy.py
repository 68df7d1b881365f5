"""Who joins the next step, and how much of each prompt it computes. Values in, a plan out."""

from collections.abc import Sequence
from dataclasses import dataclass

from powerinfer.engine.costs import SMALLEST_CHUNK, StepCosts

__all__ = ["Begun", "Limits", "Policy", "PolicyState", "Running", "StepPlan", "Waiting"]

_LONGEST_STEP_SECONDS = 0.25
_LONGEST_STEP_DECODES = 4
# What is aimed at is a little less, as no two steps take the same time.
_AIM = 0.95
# Slices that miss what is left by so little count: estimates waver while a chunk goes on.
_ROUNDING = 0.08
# Smaller chunks must promise so much more: of larger ones less is known, and more to be gained.
_WORTH_SMALLER = 1.15
# A slice may be so much longer than what is left once streams have ended, which is rare.
_BEARABLE = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a step may use.

    Attributes:
        parallel: the most sequences that run at once.
        batch_size: the most tokens of prompts in a step.
        num_slices: parts, about equally long, in which chunks can be computed beside streams.
    """

    parallel: int
    batch_size: int
    num_slices: int = 1


@dataclass(frozen=True, slots=True)
class Begun:
    """Chunks of which some slices are computed.

    Attributes:
        chunks: first position and number of tokens of each.
        num_left: slices that are to be computed, at least one.
    """

    chunks: tuple[tuple[int, int], ...]
    num_left: int


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
        begun: what earlier steps have begun; goes on before anything else.
    """

    waiting: Sequence[Waiting]
    running: Sequence[Running]
    free_blocks: int
    costs: StepCosts
    limits: Limits
    begun: Begun | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """What the next step does besides one token of every decoding sequence.

    Attributes:
        admit: ids of waiting requests that run from now on, in order of arrival.
        chunks: id of a running or just admitted prompt, and how many of its tokens to compute; none
            if chunks that were begun go on.
        num_slices: how many to compute of the chunks, or of those begun; 0 for all.
    """

    admit: tuple[int, ...] = ()
    chunks: tuple[tuple[int, int], ...] = ()
    num_slices: int = 0


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

    A chunk reads all weights, so small ones are slow: where a chunk can be computed in slices, it
    is as large as lets most tokens be computed in a second, and a step computes some of its slices.
    """

    def plan(self, state: PolicyState) -> StepPlan:
        """What the next step does."""
        admitted = _admitted(state)
        if state.begun is not None:
            num_slices = _num_slices(state, state.begun.chunks, state.begun.num_left)
            return StepPlan(admit=tuple(each.id for each in admitted), num_slices=num_slices)
        computing = sorted(
            (sequence for sequence in state.running if sequence.num_pending),
            key=lambda sequence: (sequence.arrival, sequence.id),
        )
        prompts = [_Prompt(each.id, each.position, each.num_pending) for each in computing]
        prompts += [_Prompt(each.id, each.position, each.num_pending) for each in admitted]
        num_tokens = _num_tokens(state, prompts)
        chunks = _leading(prompts, num_tokens)
        return StepPlan(
            admit=tuple(each.id for each in admitted),
            chunks=_shares(prompts, num_tokens),
            num_slices=_num_slices(state, chunks, state.limits.num_slices),
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
    if not num_tokens or not _decoding(state):
        return num_tokens
    decode_seconds = state.costs.decode_seconds(_decoding(state))
    if decode_seconds is None:
        return min(num_tokens, SMALLEST_CHUNK)
    return _fastest(state, prompts, chunks, _seconds_left(decode_seconds))


def _fastest(
    state: PolicyState,
    prompts: Sequence[_Prompt],
    chunks: Sequence[tuple[int, int]],
    seconds_left: float,
) -> int:
    """How many tokens of `chunks` to compute so that most, or nearly, are done per second."""
    decoding, num_slices = _decoding(state), state.limits.num_slices
    decode_seconds = state.costs.decode_seconds(decoding) or 0.0
    # Streams may end while slices are left, and one slice should fit beside those that stay.
    fewer = (state.costs.decode_seconds(decoding[:count]) for count in range(1, len(decoding)))
    longest_slice = min((_seconds_left(each or 0.0) for each in fewer), default=seconds_left)
    best, best_rate = 0, 0.0
    for per_step in _slicings(num_slices):
        seconds = seconds_left * num_slices / per_step
        if per_step < num_slices:
            seconds = min(seconds, _BEARABLE * longest_slice * num_slices)
        num_tokens = state.costs.num_tokens_within(seconds, chunks)
        chunk = _leading(prompts, num_tokens)
        num_steps = -(-num_slices // (_num_slices(state, chunk, num_slices) or num_slices))
        prompt_seconds = state.costs.prompt_seconds(chunk) or 0.0
        rate = num_tokens / (prompt_seconds + num_steps * decode_seconds)
        if rate > _WORTH_SMALLER * best_rate:
            best, best_rate = num_tokens, rate
    return best


def _slicings(most: int) -> list[int]:
    """Numbers of slices per step, one for each number of steps that `most` slices can take."""
    return sorted({-(-most // num_steps) for num_steps in range(1, most + 1)})


def _num_slices(state: PolicyState, chunks: Sequence[tuple[int, int]], num_left: int) -> int:
    """How many of the slices that are left of `chunks` to compute; 0 for all."""
    decoding = _decoding(state)
    decode_seconds = state.costs.decode_seconds(decoding) if decoding else None
    seconds = state.costs.prompt_seconds(chunks)
    if decode_seconds is None or not seconds:
        return 0
    fitting = int(_seconds_left(decode_seconds) * state.limits.num_slices / seconds + _ROUNDING)
    return 0 if fitting >= num_left else max(fitting, 1)


def _decoding(state: PolicyState) -> list[int]:
    return [sequence.position for sequence in state.running if sequence.is_decoding]


def _seconds_left(decode_seconds: float) -> float:
    """What a step beside streams leaves to prompts."""
    longest = max(_LONGEST_STEP_DECODES * decode_seconds, _LONGEST_STEP_SECONDS)
    return _AIM * longest - decode_seconds


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
