"""Choice of the next token from logits, in the order that users of llama.cpp expect.

Bias -> penalties -> processors -> form -> top-k -> top-p -> min-p -> temperature -> draw. Top-k
sorts its candidates likeliest first, lower id first among equals; otherwise they stay in the order
of their ids, so that a seed gives the same text everywhere.
"""

import math
import secrets
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from functools import cached_property
from itertools import accumulate
from operator import neg
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from powerinfer.errors import NumericsError
from powerinfer.ops.cpu.logits import all_finite, write_largest
from powerinfer.sampling.logit_processors import LogitChanges
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.tokenizer import Tokenizer
from powerinfer.values import BoolArray, FloatArray

if TYPE_CHECKING:
    from powerinfer.sampling.grammar.constraint import Constraint

__all__ = [
    "Sampler",
    "Softmax",
    "check_finite",
    "draw",
    "largest",
    "new_sampler",
    "place_of_share",
]

Ids = npt.NDArray[np.intp]
Sums = npt.NDArray[np.float64]
# Weights are added up in groups of this size.
_SUM_GROUP = 512
# Weights are rounded; the lower bound of candidates allows for more than that.
_ROUNDED = 0.999
# Picking more than this part (1 / _MANY) of the vocabulary costs more than computing with all.
_MANY = 4


class Softmax:
    """Softmax of a row, each part computed on first use.

    Exponentials and their sums within groups of 512 are f32, the sums of groups f64. Groups are
    fixed ranges of token ids, so that results depend on nothing but the row.

    Attributes:
        row: f32[vocab_size], minus infinity for impossible tokens; must not change.
    """

    def __init__(self, row: FloatArray) -> None:
        self.row = row

    @cached_property
    def highest(self) -> float:
        """The largest logit."""
        return float(self.row.max())

    @cached_property
    def weights(self) -> FloatArray:
        """f32[vocab_size], exp(logit - highest)."""
        return exponentials(self.row, self.highest)

    @cached_property
    def total(self) -> float:
        """Sum of the weights."""
        return float(group_sums(self.weights).sum())

    @cached_property
    def log_sum(self) -> float:
        """Log of the sum of the exponentials of the logits."""
        return self.highest + math.log(self.total)


class Sampler:
    """Draws token ids for one sequence.

    Attributes:
        seed: seed in use, drawn at random if `params.seed` is None.
        softmax: softmax of the model's own last logits, for log probabilities.
    """

    softmax: Softmax

    def __init__(
        self,
        params: SamplingParams,
        banned_ids: Collection[int] = (),
        form: "Constraint | None" = None,
    ) -> None:
        """Make a sampler that never chooses `banned_ids` and follows `form`."""
        self.params = params
        self.seed = secrets.randbits(32) if params.seed is None else params.seed
        self._random, self._num_draws = _generator(self.seed), 0
        self._form = form
        self._changes = LogitChanges(params, banned_ids, form)
        self._is_greedy = params.is_greedy

    @property
    def is_complete(self) -> bool:
        """True if the form is complete and nothing can follow, so that the text ends here."""
        return self._form is not None and self._form.is_complete

    @property
    def state(self) -> tuple[int, object]:
        """Number of draws so far, and state of the form, if any."""
        return self._num_draws, None if self._form is None else self._form.state

    @state.setter
    def state(self, kept: tuple[int, object]) -> None:
        self._num_draws, form = kept
        self._random = _generator(self.seed, self._num_draws)
        if self._form is not None:
            self._form.state = form

    def sample(self, logits: FloatArray, recent_ids: Sequence[int] = ()) -> int:
        """Choose the next token.

        Args:
            logits: f32[vocab_size]; neither this nor the caller changes it before the next call.
            recent_ids: token ids so far; the last `repeat_last_n` are penalised.

        Raises:
            NumericsError: a logit is NaN or infinite.
            PromptError: a processor returned something unusable, no token is left to choose, or
                the text cannot follow its form.
        """
        self.softmax = Softmax(logits)
        check_finite(logits)
        changed = logits
        if not self._changes.is_empty:
            changed = self._changes.apply(logits, recent_ids)
        softmax = self.softmax if changed is logits else Softmax(changed)
        token_id = self._choose(softmax)
        if self._form is not None:
            self._form.accept(token_id)
        return token_id

    def _choose(self, softmax: Softmax) -> int:
        row, params = softmax.row, self.params
        if self._is_greedy:
            return int(np.argmax(row))
        if 0 < params.top_k < len(row):
            return self._choose_sorted(row)
        is_kept = self._kept(softmax)
        share, temperature = self._share(), params.temperature
        if is_kept is not None and np.count_nonzero(is_kept) < len(row) // _MANY:
            ids = np.flatnonzero(is_kept)
            return int(ids[draw(exponentials(row[ids], softmax.highest, temperature), share)])
        weights = softmax.weights
        if temperature != 1:
            weights = exponentials(row, softmax.highest, temperature)
        return draw(weights if is_kept is None else weights * is_kept, share)

    def _choose_sorted(self, row: FloatArray) -> int:
        """Choose among the k likeliest."""
        params = self.params
        ids = largest(row, params.top_k)
        values = row[ids].astype(np.float64)
        differences, count = values - values[0], len(ids)
        # Of few numbers, lists are faster than arrays, and add up to the same bits.
        if params.top_p < 1:
            sums = list(accumulate(np.exp(differences).tolist()))
            count = bisect_left(sums, params.top_p * sums[-1]) + 1
        if params.min_p > 0:
            lowest = float(values[0] + np.log(params.min_p))
            count = min(count, bisect_right(values.tolist(), -lowest, key=neg))
        # At the least temperature everything but the best weighs 0, and no quotient overflows.
        weights = np.exp(differences[:count] / max(params.temperature, 1e-200))
        total = list(accumulate(weights.tolist()))
        drawn = bisect_right(total, self._share() * total[-1])
        # A share just below 1 may round up to the total, after which there are only banned tokens.
        return int(ids[min(drawn, bisect_left(total, total[-1]))])

    def _share(self) -> float:
        """Draw a number from 0 to 1."""
        self._num_draws += 1
        return self._random.random()

    def _kept(self, softmax: Softmax) -> BoolArray | None:
        """Return a mask of the tokens that top-p and min-p keep; None without both."""
        top_p, min_p = self.params.top_p, self.params.min_p
        if top_p < 1:
            return _nucleus_of_all(softmax, min_p, top_p)
        if min_p == 0:
            return None
        return softmax.row >= np.float32(softmax.highest + np.log(min_p))


def new_sampler(tokenizer: Tokenizer, params: SamplingParams, prompt_ids: Sequence[int]) -> Sampler:
    """Make the sampler of a text that continues a prompt.

    Raises:
        PromptError: the requested form cannot be enforced.
    """
    banned_ids = tokenizer.eog_ids if params.ignore_eos else ()
    if not params.has_form:
        return Sampler(params, banned_ids)
    # Imported here: few texts have a form.
    from powerinfer.sampling.grammar.constraint import Constraint

    begins_text = all(map(tokenizer.is_special, prompt_ids))
    return Sampler(params, banned_ids, Constraint(tokenizer, params, begins_text=begins_text))


def _generator(seed: int, num_draws: int = 0) -> np.random.Generator:
    """Make a random generator that has drawn this many numbers."""
    bits = np.random.PCG64(seed)
    return np.random.Generator(bits.advance(num_draws))


def check_finite(logits: FloatArray) -> None:
    """Raise NumericsError if logits are not all finite."""
    if all_finite(logits):
        return
    bad = int(np.count_nonzero(~np.isfinite(logits)))
    raise NumericsError(f"{bad} of {logits.size} logits are NaN or infinite")


def largest(logits: FloatArray, count: int) -> Ids:
    """Return the ids of the `count` largest logits, largest first, lower id first among equals."""
    ids = np.empty(min(count, len(logits)), np.int64)
    write_largest(logits, ids)
    return ids


def _nucleus_of_all(softmax: Softmax, min_p: float, top_p: float) -> BoolArray:
    """Return a mask of the likeliest tokens that together reach `top_p`, below 1, of the total.

    Tokens less likely than `min_p` times the likeliest are left out, but count in the total.
    """
    weights, total = softmax.weights, softmax.total
    # All tokens below this weigh less together than the nucleus leaves out.
    nothing = (1 - top_p) * total / len(weights) * _ROUNDED
    is_candidate = weights >= np.float32(max(min_p, nothing))
    is_few = np.count_nonzero(is_candidate) < len(weights) // _MANY
    ordered = np.sort(weights[np.flatnonzero(is_candidate)] if is_few else weights)[::-1].copy()
    last = place_of_share(ordered, top_p * total)
    if last is None or ordered[last] < np.float32(min_p):
        return is_candidate
    is_kept: BoolArray = weights >= ordered[last]
    if surplus := np.count_nonzero(is_kept) - (last + 1):
        # Ties keep the lower ids.
        is_kept[np.flatnonzero(weights == ordered[last])[-surplus:]] = False
    return is_kept


def exponentials(logits: FloatArray, highest: float, temperature: float = 1) -> FloatArray:
    """Compute f32 exp((logit - highest) / temperature)."""
    weights: FloatArray = logits - np.float32(highest)
    if temperature != 1:
        # Beyond these limits all weights are equal, or all but the largest are 0 in f32.
        with np.errstate(over="ignore"):
            weights /= np.float32(min(max(temperature, 1e-30), 1e30))
    np.exp(weights, out=weights)
    return weights


def group_sums(weights: FloatArray) -> Sums:
    """Return f64 sums of the groups of f32 weights."""
    num_whole = len(weights) // _SUM_GROUP
    end = num_whole * _SUM_GROUP
    sums = np.empty(num_whole + 1, np.float64)
    sums[:num_whole] = weights[:end].reshape(num_whole, _SUM_GROUP).sum(axis=1)
    sums[num_whole] = weights[end:].sum()
    return sums


def draw(weights: FloatArray, share: float) -> int:
    """Return the index among f32 weights at a share (0 to 1) of their sum; never of weight 0."""
    sums = np.cumsum(group_sums(weights))
    wanted = share * sums[-1]
    group = _first_above(sums, wanted)
    begin = group * _SUM_GROUP
    inner = np.cumsum(weights[begin : begin + _SUM_GROUP], dtype=np.float64)
    return begin + _first_above(inner, wanted - (sums[group - 1] if group else 0))


def place_of_share(weights: FloatArray, wanted: float) -> int | None:
    """Return the first index up to which f32 weights add up to `wanted`; None if they do not."""
    sums = np.cumsum(group_sums(weights))
    if sums[-1] < wanted:
        return None
    group = int(np.searchsorted(sums, wanted, side="left"))
    begin = group * _SUM_GROUP
    inner = np.cumsum(weights[begin : begin + _SUM_GROUP], dtype=np.float64)
    rest = wanted - (sums[group - 1] if group else 0)
    return begin + min(int(np.searchsorted(inner, rest, side="left")), len(inner) - 1)


def _first_above(sums: Sums, wanted: float) -> int:
    """Return the first index whose sum exceeds `wanted`, at most the last that adds anything.

    The sums may be rounded to below `wanted`.
    """
    found = int(np.searchsorted(sums, wanted, side="right"))
    return min(found, int(np.searchsorted(sums, sums[-1], side="left")))
