"""`EngineLM`: our engine as a model of lm-eval."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from powerinfer.engine.llm import LLM
from powerinfer.errors import PromptError, TokenizerError
from powerinfer.sampling.sampling_params import SamplingParams

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

__all__ = ["EngineLM"]

Request = tuple[tuple[str, str] | None, list[int], list[int]]
"""Context and continuation as text, then the token ids of each."""

# Most continuations of a context to score in one call, between two reports of progress.
_SCORED_TOGETHER = 64
_NEW_TOKENS = 256


class EngineLM(TemplateLM):  # type: ignore[misc]  # lm-eval has no types
    """Model of lm-eval that tokenizes and cuts as lm-eval's own `hf` model does.

    A context is computed once for all its continuations, and results are those of scoring each
    alone, to the bit.

    Attributes:
        num_cut: number of requests that lost their beginning to fit the context.
    """

    def __init__(self, llm: LLM, progress: Callable[[int, int], None] | None = None) -> None:
        """Wrap a loaded model, which nothing else should use meanwhile."""
        super().__init__()
        self._llm = llm
        self._tokenizer = llm.loaded.tokenizer
        self._progress = progress
        self.num_cut = 0

    @property
    def max_length(self) -> int:
        """Number of tokens in the context."""
        return self._llm.loaded.model.context_length

    @property
    def eot_token_id(self) -> int:
        """Id of the token that ends a text."""
        if self._tokenizer.eos_id is None:
            raise TokenizerError(
                "the vocabulary has no token that ends a text, which lm-eval needs"
            )
        return self._tokenizer.eos_id

    @property
    def prefix_token_id(self) -> int:
        """Token before a continuation without a context: BOS, or else the end of a text."""
        bos_id = self._tokenizer.bos_id
        return self.eot_token_id if bos_id is None else bos_id

    def tok_encode(
        self,
        string: str,
        add_special_tokens: bool | None = None,  # noqa: FBT001  lm-eval's signature
        **_: object,
    ) -> list[int]:
        """Encode a text, adding BOS as the model expects unless `add_special_tokens` decides.

        By default, a BOS at the beginning of the text is not added again.
        """
        ids = self._tokenizer.encode(string, add_bos=add_special_tokens, parse_special=True)
        bos_id = self._tokenizer.bos_id
        if add_special_tokens is None and bos_id is not None and ids[:2] == [bos_id, bos_id]:
            return ids[1:]
        return ids

    def loglikelihood(
        self,
        requests: "list[Instance]",
        disable_tqdm: bool = True,  # noqa: FBT001, FBT002  lm-eval's signature
    ) -> list[tuple[float, bool]]:
        """Return the log probability of each continuation, and whether it is the greedy one."""
        scores = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        return cast("list[tuple[float, bool]]", scores)

    def _loglikelihood_tokens(
        self, requests: Sequence[Request], **_: object
    ) -> list[tuple[float, bool]]:
        """Score token ids like `loglikelihood`."""
        by_context: dict[tuple[int, ...], list[int]] = {}
        pairs = [self._fitting(*request) for request in requests]
        for number, (context, _continuation) in enumerate(pairs):
            by_context.setdefault(tuple(context), []).append(number)
        results: dict[int, tuple[float, bool]] = {}
        for numbers in by_context.values():
            for start in range(0, len(numbers), _SCORED_TOGETHER):
                part = numbers[start : start + _SCORED_TOGETHER]
                scores = self._llm.score([pairs[number] for number in part])
                for number, score in zip(part, scores, strict=True):
                    results[number] = (score.logprob, score.is_greedy)
                    text = requests[number][0]
                    if text is not None:
                        self.cache_hook.add_partial("loglikelihood", text, results[number])
                self._report(len(results), len(requests))
        return [results[number] for number in range(len(requests))]

    def _fitting(
        self, text: tuple[str, str] | None, context: list[int], continuation: list[int]
    ) -> tuple[list[int], list[int]]:
        """Cut the beginning of a request to fit the context of the model."""
        shown = "" if text is None else f" {text[1]!r:.60}"
        if not continuation:
            raise PromptError(f"the continuation{shown} has no token of its own after its context")
        if len(continuation) > self.max_length:
            raise PromptError(
                f"the continuation{shown} has {len(continuation)} tokens, the context holds "
                f"{self.max_length}",
                remedy="take a larger context ({context_length})",
            )
        context = context or [self.prefix_token_id]
        # The last token is never computed.
        too_many = len(context) + len(continuation) - (self.max_length + 1)
        if too_many > 0:
            self.num_cut += 1
            context = context[too_many:]
        return context, continuation

    def loglikelihood_rolling(
        self,
        requests: "list[Instance]",
        disable_tqdm: bool = True,  # noqa: FBT001, FBT002  lm-eval's signature
    ) -> list[float]:
        """Return the log probability of each text, in windows of the whole context."""
        windows: list[Request] = []
        counts = []
        for request in requests:
            (text,) = request.args
            parts = get_rolling_token_windows(
                self.tok_encode(text), self.prefix_token_id, self.max_length, context_len=1
            )
            own = [make_disjoint_window(part) for part in parts]
            windows += [(None, context, continuation) for context, continuation in own]
            counts.append(len(own))
        scores = iter(self._loglikelihood_tokens(windows))
        sums = [sum(next(scores)[0] for _ in range(count)) for count in counts]
        for request, total in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return sums

    def generate_until(
        self,
        requests: "list[Instance]",
        disable_tqdm: bool = True,  # noqa: FBT001, FBT002  lm-eval's signature
    ) -> list[str]:
        """Generate a text after each context, until a stop string or the limit."""
        texts = []
        for number, request in enumerate(requests, 1):
            context, wanted = request.args
            params = _sampling_params(wanted)
            room = self.max_length - cast("int", params.max_tokens)
            if room < 1:
                raise PromptError(
                    f"a task asks for {params.max_tokens} new tokens, the context holds "
                    f"{self.max_length}",
                    remedy="take a larger context ({context_length})",
                )
            ids = self.tok_encode(context) or [self.prefix_token_id]
            self.num_cut += len(ids) > room
            texts.append(self._llm.generate([ids[-room:]], params)[0].text)
            self.cache_hook.add_partial("generate_until", request.args, texts[-1])
            self._report(number, len(requests))
        return texts

    def _report(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(done, total)


def _sampling_params(wanted: dict[str, Any]) -> SamplingParams:
    """Convert lm-eval's `generation_kwargs`; greedy unless they ask for sampling."""
    until = wanted.get("until") or []
    temperature = float(wanted.get("temperature") or 0)
    return SamplingParams(
        max_tokens=int(wanted.get("max_gen_toks", _NEW_TOKENS)),
        temperature=temperature if wanted.get("do_sample", temperature > 0) else 0,
        top_p=float(wanted.get("top_p", 1.0)),
        top_k=int(wanted.get("top_k", 0)),
        min_p=float(wanted.get("min_p", 0.0)),
        repeat_penalty=1.0,
        stop=[until] if isinstance(until, str) else [each for each in until if each],
    )
