"""Policy of steps: which requests to admit, and how much of each prompt to compute."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar, TypeAlias

from powerinfer.engine.costs import SMALLEST_CHUNK, StepCosts

__all__ = ["Begun", "Limits", "Policy", "PolicyState", "Running", "StepPlan", "Waiting"]

_in_order = attrgetter("id")

# The longest step with streams in seconds, and in decode steps of one stream, whichever is longer.
_LONGEST_STEP = (0.12, 4.0)
# If a chunk is one slice, smaller chunks would read all weights for few tokens.
_LONGEST_WHOLE_STEP = (0.25, 4.0)
# The more streams wait for a step, the shorter it is: fewer decode steps by this for each of them.
_DECODES_PER_STREAM = 0.125
_FEWEST_DECODES = 2.0
# Aim a little lower, as no two steps take the same time.
_AIM = 0.95
# Slices that miss the remaining time by this little count: estimates waver during a chunk.
_ROUNDING = 0.08
# Required gain of smaller chunks: less is known of larger ones, and there is more to gain.
_WORTH_SMALLER = 1.15
# A slice may exceed the time left by this factor once streams have ended, which is rare.
_BEARABLE = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a step.

    Attributes:
        parallel: most sequences that run at once.
        batch_size: most prompt tokens in a step.
        num_slices: number of slices of about equal duration in which chunks can be computed.
    """

    parallel: int
    batch_size: int
    num_slices: int = 1


@dataclass(frozen=True, slots=True)
class Begun:
    """Chunks of which some slices are computed.

    Attributes:
        chunks: first position and number of tokens of each.
        num_left: number of slices still to be computed, at least one.
    """

    chunks: tuple[tuple[int, int], ...]
    num_left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A text that has not been admitted.

    Attributes:
        id: id of the text, ascending in order of arrival.
        needs_blocks: free blocks that it takes until it ends: for its prompt and its most tokens,
            less those that it shares with running sequences.
        num_pending: prompt tokens to be computed.
        takes_place: it counts among the `parallel` texts; else it needs blocks only.
        position: position of the first token to compute.
    """

    id: int
    needs_blocks: int
    num_pending: int
    takes_place: bool = True
    position: ClassVar[int] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A text that has been admitted.

    Attributes:
        id: id of the text, ascending in order of arrival.
        is_decoding: it computes one token in every step.
        num_pending: prompt tokens to be computed; 0 if it is decoding or paused.
        position: position of the first token to compute.
        takes_place: as for `Waiting`.
    """

    id: int
    is_decoding: bool
    num_pending: int = 0
    position: int = 0
    takes_place: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyState:
    """Inputs of a plan.

    Attributes:
        waiting: waiting texts in the order in which they are admitted.
        running: running texts in any order.
        free_blocks: blocks that nobody uses and no running text can come to need.
        costs: estimates of durations; not changed.
        limits: limits of every step.
        begun: chunks that earlier steps began; they go on before anything else.
    """

    waiting: Sequence[Waiting]
    running: Sequence[Running]
    free_blocks: int
    costs: StepCosts
    limits: Limits
    begun: Begun | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """Work of the next step besides one token of every decoding sequence.

    Attributes:
        admit: ids of waiting texts to admit, in order of arrival.
        chunks: ids of running or just admitted prompts, and numbers of tokens to compute; none
            while earlier chunks go on.
        num_slices: number of slices to compute of these or earlier chunks; 0 for all.
    """

    admit: tuple[int, ...] = ()
    chunks: tuple[tuple[int, int], ...] = ()
    num_slices: int = 0


_Prompts: TypeAlias = Sequence[Waiting | Running]


class Policy:
    """Admits texts and computes as much of their prompts as streams allow, in order of arrival.

    A text is admitted when there are blocks for all that it may come to need, so that nothing is
    preempted later; one that does not fit holds up all later ones, or it might wait forever. A step
    with decoding sequences takes less than four decode steps (two if there are 16 sequences) or
    0.12 s, whichever is longer, or four and 0.25 s if a chunk is one slice.

    A chunk reads all weights, so small ones are slow: if a chunk can be computed in slices, its
    size is the one that gives most tokens per second, and a step computes some of its slices.
    """

    def plan(self, state: PolicyState) -> StepPlan:
        """Plan the next step."""
        admitted = _admitted(state)
        if state.begun is not None:
            num_slices = _num_slices(state, state.begun.chunks, state.begun.num_left)
            return StepPlan(admit=tuple(each.id for each in admitted), num_slices=num_slices)
        computing = sorted((each for each in state.running if each.num_pending), key=_in_order)
        prompts: _Prompts = [*computing, *admitted]
        num_tokens = _num_tokens(state, prompts)
        chunks = _leading(prompts, num_tokens)
        return StepPlan(
            admit=tuple(each.id for each in admitted),
            chunks=_shares(prompts, num_tokens),
            num_slices=_num_slices(state, chunks, state.limits.num_slices),
        )


def _admitted(state: PolicyState) -> list[Waiting]:
    admitted: list[Waiting] = []
    free_blocks = state.free_blocks
    places = state.limits.parallel - sum(text.takes_place for text in state.running)
    for text in state.waiting:
        places -= text.takes_place
        free_blocks -= text.needs_blocks
        if free_blocks < 0 or (text.takes_place and places < 0):
            break
        admitted.append(text)
    return admitted


def _num_tokens(state: PolicyState, prompts: _Prompts) -> int:
    """Return the number of tokens of `prompts` that the step may compute."""
    chunks = _leading(prompts, state.limits.batch_size)
    num_tokens = sum(count for _, count in chunks)
    if not num_tokens or not _decoding(state):
        return num_tokens
    decode_seconds = state.costs.decode_seconds(_decoding(state))
    if decode_seconds is None:
        return min(num_tokens, SMALLEST_CHUNK)
    return _fastest(state, prompts, chunks)


def _fastest(state: PolicyState, prompts: _Prompts, chunks: Sequence[tuple[int, int]]) -> int:
    """Return the number of tokens of `chunks` with (nearly) the most tokens per second."""
    decoding, num_slices = _decoding(state), state.limits.num_slices
    decode_seconds = state.costs.decode_seconds(decoding) or 0.0
    # Streams may end while slices are left, and one slice should fit with those that stay.
    left = [_seconds_left(state, decoding[: count + 1]) or 0.0 for count in range(len(decoding))]
    seconds_left, longest_slice = left[-1], min(left[:-1], default=left[-1])
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
    """Return numbers of slices per step, one for each number of steps that `most` can take."""
    return sorted({-(-most // num_steps) for num_steps in range(1, most + 1)})


def _num_slices(state: PolicyState, chunks: Sequence[tuple[int, int]], num_left: int) -> int:
    """Return how many of the remaining slices of `chunks` to compute; 0 for all."""
    decoding = _decoding(state)
    seconds_left = _seconds_left(state, decoding) if decoding else None
    seconds = state.costs.prompt_seconds(chunks)
    if seconds_left is None or not seconds:
        return 0
    fitting = int(seconds_left * state.limits.num_slices / seconds + _ROUNDING)
    return 0 if fitting >= num_left else max(fitting, 1)


def _decoding(state: PolicyState) -> list[int]:
    return [sequence.position for sequence in state.running if sequence.is_decoding]


def _seconds_left(state: PolicyState, decoding: Sequence[int]) -> float | None:
    """Return the time that a step with `decoding` leaves for prompts; None if nothing is known."""
    decode_seconds = state.costs.decode_seconds(decoding)
    if decode_seconds is None:
        return None
    is_whole = state.limits.num_slices == 1
    seconds, most_decodes = _LONGEST_WHOLE_STEP if is_whole else _LONGEST_STEP
    if not is_whole:
        most_decodes = max(most_decodes - _DECODES_PER_STREAM * len(decoding), _FEWEST_DECODES)
    return _AIM * max(most_decodes * decode_seconds, seconds) - decode_seconds


def _leading(prompts: _Prompts, num_tokens: int) -> list[tuple[int, int]]:
    """Return positions and sizes of chunks with the first `num_tokens` tokens of `prompts`."""
    shares = dict(_shares(prompts, num_tokens))
    return [(each.position, shares[each.id]) for each in prompts if each.id in shares]


def _shares(prompts: _Prompts, num_tokens: int) -> tuple[tuple[int, int], ...]:
    """Share `num_tokens` among prompts: the first gets what it needs, the next the rest."""
    shares = []
    for prompt in prompts:
        count = min(prompt.num_pending, num_tokens)
        if count:
            shares.append((prompt.id, count))
        num_tokens -= count
    return tuple(shares)
