"""The public face of the engine: load a model, generate texts, stream one, talk."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NoReturn, Self, Unpack

from powerinfer.calibration.observing import FFNObserver, observable, observed
from powerinfer.calibration.recall import with_recall_meter
from powerinfer.engine.engine import MAX_UNREAD, Engine
from powerinfer.engine.request import Request, RequestHandle
from powerinfer.engine.text_stream import (
    AsyncTextStream,
    Generation,
    Reader,
    TextSoFar,
    TextStream,
)
from powerinfer.errors import PowerInferError, PromptError, UnsupportedError
from powerinfer.loading import loader
from powerinfer.loading.loader import LoadedModel, Progress
from powerinfer.loading.step import TokenSequence
from powerinfer.options.llm_options import LLMOptions
from powerinfer.options.options import CPU, engine_options
from powerinfer.prompts.messages import Message, message_ids, with_chat_stop
from powerinfer.prompts.prompts import (
    Params,
    Prompt,
    TokenIds,
    decode_ids,
    encode_text,
    prompt_ids,
    read_jobs,
    read_params,
)
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.values import FloatArray

if TYPE_CHECKING:
    from powerinfer.offload.progress import PlacementProgress
    from powerinfer.prompts.texts import ContextAndContinuation, Scorable
    from powerinfer.scoring.scoring import Score

__all__ = ["LLM", "Prompt"]

# Texts of one call that are lined up, as a multiple of those that run at once: the next ones are
# there when some end, and texts of others come between.
_WINDOW = 2


class LLM:
    """A language model loaded from a GGUF file; `docs/python.md` shows how to use it.

    Texts are computed side by side, up to `parallel` at once, whoever asks for them: prompts of one
    call, streams of one thread, threads and asyncio tasks. None changes a bit of another.
    """

    def __init__(
        self,
        path: Path | str | None = None,
        *,
        progress: Progress | None = None,
        calibrating: Progress | None = None,
        placing: "PlacementProgress | None" = None,
        observe: FFNObserver | None = None,
        reading: Progress | None = None,
        downloading: Progress | None = None,
        **options: Unpack[LLMOptions],
    ) -> None:
        """Load a model.

        Args:
            path: a GGUF file, the first part of a split file, a folder with one model, or a model
                on the Hugging Face Hub, `hf:ORG/NAME[:QUANT][@REVISION]`, which is fetched if it
                is not here; None takes the model that comes with the package.
            progress: called with (bytes prepared, bytes in all) while loading.
            calibrating: called with (layers done, layers in all) where `sparsity="auto"` or a dial
                makes the model be calibrated now.
            placing: told while this machine is measured, for reading the weights of a large model
                and for placing it on a GPU.
            observe: called with a `FFNObservation` for each layer of each step; the CPU computes
                then, and more slowly. What it raises ends the call that runs the step.
            reading: called with (tokens computed, tokens in all) while a prompt is computed.
            downloading: called with (bytes that are there, bytes in all) while a model is fetched.
            **options: see `powerinfer.options.options`, where each option has its entry.

        Raises:
            CalibrationError: the model's stored calibration is damaged or belongs to another.
            GGUFError: the file is missing or malformed.
            HubError: a model on the Hub cannot be found, chosen or fetched.
            UnsupportedError: an option, architecture or tensor type that is not implemented.
            PromptError: an option is out of its range.
            TokenizerError: the vocabulary cannot be used.
            DeviceError: the asked-for kernels or GPU are not available.
            PlacementError: the plan that was named for the GPU cannot be used.
        """
        checked = engine_options(**options)
        if observe is not None:
            checked = observable(checked, observe)
        opened = loader.open_model(path, checked, downloading)
        loaded = loader.load(opened, checked, progress, calibrating, placing)
        if loaded.options.measure_recall:
            loaded = replace(loaded, model=with_recall_meter(loaded.model))
        if observe is not None:
            loaded = replace(loaded, model=observed(loaded.model, observe))
        self._start(loaded, reading)

    @classmethod
    def of(cls, loaded: LoadedModel) -> Self:
        """An `LLM` that runs what was loaded, maybe by another one; see `share`.

        Raises:
            PowerInferError: it is something else.
            UnsupportedError: a part of the model lies on a GPU.
        """
        if not isinstance(loaded, LoadedModel):
            raise PowerInferError(f"LLM.of takes what another LLM has loaded, got {loaded!r:.60}")
        if loaded.device != CPU:
            raise UnsupportedError(
                "a model that lies on a GPU in part cannot be shared, because the plan of what "
                "lies there has room for one context",
                remedy="load it a second time, or on the CPU alone ({device='cpu'})",
            )
        llm = cls.__new__(cls)
        llm._start(loaded)
        return llm

    def _start(self, loaded: LoadedModel, reading: Progress | None = None) -> None:
        self._engine = Engine(loaded, reading, max_unread=MAX_UNREAD)
        self._loaded: LoadedModel | None = loaded

    def __enter__(self) -> Self:
        self.loaded  # noqa: B018  refuses a model that was closed
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise TypeError(
            "an LLM cannot be pickled or copied, since it consists of threads and mapped memory: "
            "load the model again in the other process, or use share() for a second one in this"
        )

    @property
    def loaded(self) -> LoadedModel:
        """What was loaded: file, configuration, tokenizer, and what runs it.

        Raises:
            PowerInferError: the model was closed, or loaded by the process that forked this one.
        """
        self._engine.check_process()
        # Read once: another thread may close it.
        loaded = self._loaded
        if loaded is None:
            raise PowerInferError("this LLM was closed; make a new one")
        return loaded

    def share(self) -> Self:
        """A second `LLM` on the same weights, with an engine of its own.

        It has its own keys and values (memory for one more context). Steps of the two take turns;
        each computes what it would alone, to the bit. The weights are freed when both are closed.
        `observe` is called for the steps of both, `reading` for prompts of the first alone.

        Raises:
            UnsupportedError: a part of the model lies on a GPU.
        """
        return self.of(self.loaded)

    def close(self) -> None:
        """Give the memory back at once; the object cannot be used afterwards.

        Any thread may call it. It waits for the step that is being computed, then ends every
        stream, even one that is kept, and every call that waits or computes. Results of
        `loaded` and `new_sequence` go on working, and keep their memory while they are referenced.
        """
        loaded = self._loaded
        placement = None if loaded is None else loaded.placement
        device = None if placement is None else placement.device
        if self._engine.is_of_this_process:
            self._engine.close()
        else:
            device = None  # a GPU belongs to the process that forked this one, too
        self._loaded = loaded = placement = None
        if device is not None:
            from powerinfer.offload.place import give_memory_back

            give_memory_back(device)

    def new_sequence(self) -> TokenSequence:
        """An empty sequence for computing logits directly: always the same, emptied.

        It is for one thread, which generates nothing meanwhile: texts take its room.
        """
        self.loaded  # noqa: B018  refuses a model that was closed
        return self._engine.direct_sequence()

    # Texts to come.

    def generate(
        self, prompts: Prompt | Iterable[Prompt], params: Params = None
    ) -> list[Generation]:
        """Generate texts for each prompt, side by side.

        All prompts and parameters are checked before the first is computed.

        Args:
            prompts: one prompt, or several.
            params: sampling parameters for all prompts, or one for each. With `n` above 1 a prompt
                is computed once and continued `n` times; text number i has the seed `seed` + i.

        Returns:
            `n` generations per prompt, in order, in one flat list.

        Raises:
            PromptError: a prompt is empty or longer than the context, an id or a parameter is not
                valid, or there are not as many parameters as prompts.
            NumericsError: the model produced NaN or infinity; names the layer.
            PowerInferError: the model was closed.
        """
        loaded = self.loaded
        requests = [self._request(*job) for job in read_jobs(loaded, prompts, params)]
        return _generate_all(self._engine, requests, _WINDOW * loaded.options.parallel)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        is_prompt: Sequence[bool] | None = None,
    ) -> TextStream:
        """Generate a text piece by piece; a piece never splits a character.

        The prompt is checked now. Streams go on side by side, read by one thread or by many; where
        more than `parallel` are begun, a new one waits until another has ended. Read a stream to
        its end or close it, best in a `with` statement.

        Args:
            prompt: text or token ids.
            params: sampling parameters.
            is_prompt: of each id of a prompt whether it was given; False where it is of an earlier
                answer, whose tokens then count as generated: `reuse_prefix` finds their keys and
                values. None: all were given.

        Raises:
            PromptError: as for `generate`, `n` is above 1, or `is_prompt` has another length.
        """
        return TextStream(self._reader(prompt, params, is_prompt))

    def astream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        is_prompt: Sequence[bool] | None = None,
    ) -> AsyncTextStream:
        """As `stream`, for asyncio: the event loop stays free while pieces are computed.

        Raises:
            PromptError: as for `stream`.
        """
        return AsyncTextStream(self._reader(prompt, params, is_prompt))

    def chat(self, messages: Sequence[Message], params: SamplingParams | None = None) -> Generation:
        """Answer the last of some messages.

        Args:
            messages: each a dictionary with `role` and `content`, the oldest first.
            params: for one text.

        Raises:
            PromptError: the messages are malformed, too long, or refused by the model's template.
            NumericsError: the model produced NaN or infinity; names the layer.
        """
        request = self._one(self.chat_prompt(messages), self.chat_params(params))
        return _generate_all(self._engine, [request], 1)[0]

    def chat_prompt(self, messages: Sequence[Message]) -> list[int]:
        """The prompt that makes the model answer, by its chat template: token ids.

        A model without one gets a plain dialogue of `User:` and `Assistant:`; see `chat_params`.

        Raises:
            PromptError: as for `chat`.
        """
        loaded = self.loaded
        return message_ids(loaded.tokenizer, messages, loaded.model.context_length)

    def chat_params(self, params: SamplingParams | None = None) -> SamplingParams:
        """Sampling parameters for an answer to `chat_prompt`.

        A model without a template also stops where it would begin to speak for the user.
        """
        return with_chat_stop(self.loaded.tokenizer, read_params(params))

    def encode(
        self, text: str | bytes, *, add_bos: bool | None = None, parse_special: bool = True
    ) -> list[int]:
        """Token ids of a text of any length; by default those that `generate` computes.

        Args:
            text: bytes are taken as UTF-8; what is not UTF-8 becomes byte tokens.
            add_bos: put BOS in front; None does what the model expects.
            parse_special: take names of special tokens (`<|im_end|>`) as such; turn it off for
                untrusted text.

        Raises:
            PromptError: `text` is neither str nor bytes.
        """
        tokenizer = self.loaded.tokenizer
        return encode_text(tokenizer, text, add_bos=add_bos, parse_special=parse_special)

    def decode(self, token_ids: TokenIds, *, skip_special: bool = True) -> str:
        """The text of token ids; bytes that are no UTF-8 become U+FFFD.

        Args:
            token_ids: of the model's vocabulary.
            skip_special: leave special tokens out; else their names are printed.

        Raises:
            PromptError: something is no id of the vocabulary.
        """
        return decode_ids(self.loaded.tokenizer, token_ids, skip_special=skip_special)

    # Texts that are there.
    #
    # What is called is imported late: most programs only generate.

    def logits(self, prompt: Prompt, *, last: int | None = None) -> FloatArray:
        """Logits after each token of a prompt: f32[num_tokens, vocab_size].

        Args:
            prompt: as for `generate`.
            last: give only those after the last so many tokens, which saves memory and time.

        Raises:
            PromptError: as for `generate`, or `last` is not between 1 and the number of tokens.
            NumericsError: the model produced NaN or infinity; names the layer.
        """
        from powerinfer.scoring.scoring import prompt_logits

        loaded = self.loaded
        token_ids = prompt_ids(loaded, prompt)
        with self._engine.own_sequence(len(token_ids)) as sequence:
            return prompt_logits(loaded, sequence, token_ids, last)

    def score(self, texts: "Scorable | Iterable[Scorable]") -> "list[Score]":
        """How likely texts are, or continuations of contexts.

        Of a text alone all tokens behind BOS are scored; where the vocabulary adds no BOS, and of
        token ids, all but the first. Of a pair (context, continuation) the continuation is scored.
        Both are tokenized as one text: spaces at the end of the context, and a token across the
        border, belong to the continuation. A context of several pairs is computed once; on the CPU
        no result depends, in any bit, on what else is scored in the same call.

        Args:
            texts: one or several; a pair is a tuple in a list.

        Returns:
            One `Score` per text, in order.

        Raises:
            PromptError: nothing of a text can be scored, or it is longer than the context by more
                than the one token that is never computed. Nothing was computed then.
            NumericsError: the model produced NaN or infinity; names the layer.
        """
        from powerinfer.prompts.texts import read_scorables
        from powerinfer.scoring.scoring import score_of

        loaded = self.loaded
        items = read_scorables(loaded, texts)
        # Sorted, and those of one context one after the other: each leaves its keys and values.
        order = sorted(set(items))
        done = _run_all(
            self._engine,
            [_scoring(item) for item in order],
            _WINDOW * loaded.options.parallel,
            _have_other_contexts,
        )
        scores = {
            item: score_of(handle.prompt_logprobs or ())
            for item, (handle, _) in zip(order, done, strict=True)
        }
        return [scores[item] for item in items]

    def embed(
        self,
        texts: Prompt | Iterable[Prompt],
        *,
        pooling: Literal["mean", "last"] = "mean",
        normalize: bool = True,
    ) -> FloatArray:
        """Texts as vectors: f32[num_texts, hidden_size].

        A vector is pooled from the hidden states behind the final norm, which the output head gets.

        Args:
            texts: one or several; BOS is added as the vocabulary asks.
            pooling: `mean` takes the mean over all tokens but BOS at the beginning, `last` the
                state of the last token.
            normalize: give each vector the length 1.

        Raises:
            PromptError: a text is empty or longer than the context. Nothing was computed then.
            UnsupportedError: there is no such pooling.
            NumericsError: the model produced NaN or infinity; names the layer.
        """
        from powerinfer.prompts.texts import read_texts
        from powerinfer.scoring.embedding import check_pooling, embed_texts

        check_pooling(pooling)
        loaded = self.loaded
        read = read_texts(loaded, texts)
        with self._engine.own_sequence(max(map(len, read), default=0)) as sequence:
            return embed_texts(loaded, sequence, read, pooling, normalize=normalize)

    def _reader(
        self, prompt: Prompt, params: SamplingParams | None, is_prompt: Sequence[bool] | None
    ) -> Reader:
        """What takes the pieces of the one text of a stream."""
        request = self._one(prompt, params, is_prompt)
        self._engine.check_process()
        return Reader(self._engine, request)

    def _one(
        self,
        prompt: Prompt,
        params: SamplingParams | None,
        is_prompt: Sequence[bool] | None = None,
    ) -> Request:
        """What is asked for where there is one text."""
        ((token_ids, checked),) = read_jobs(self.loaded, [prompt], params)
        if checked.n != 1:
            raise PromptError(
                f"a stream or a chat is one text, got n = {checked.n}",
                remedy="leave {n} out, or use generate",
            )
        return self._request(token_ids, checked, is_prompt)

    def _request(
        self, token_ids: list[int], params: SamplingParams, is_prompt: Sequence[bool] | None = None
    ) -> Request:
        return Request(
            prompt_ids=token_ids,
            params=params,
            is_prompt=None if is_prompt is None else _checked_kinds(is_prompt),
            reuses_prefix=self.loaded.options.reuse_prefix,
        )


def _run_all(
    engine: Engine,
    requests: Sequence[Request],
    num_at_once: int,
    may_overlap: Callable[[Request, Request], bool] = lambda _one, _other: True,
) -> list[tuple[RequestHandle, list[TextSoFar]]]:
    """Compute all texts of some requests, side by side with those of others.

    Args:
        engine: that computes them.
        requests: all are checked before the first is computed.
        num_at_once: texts that are lined up at the same time; those of others come between.
        may_overlap: whether two of the requests may run at the same time.

    Returns:
        The handle and the `n` texts of each, in order.

    Raises:
        PromptError: one can never run.
        PowerInferError: the model was closed meanwhile.
        NumericsError: the model produced NaN or infinity; names the layer.
    """
    engine.check_usable()
    handles = [engine.prepare(request) for request in requests]
    texts = {
        handle: [TextSoFar(handle, index) for index in range(handle.request.params.n)]
        for handle in handles
    }

    def may_join(handle: RequestHandle) -> bool:
        return sum(each.request.params.n for each in running) < num_at_once and all(
            may_overlap(handle.request, each.request) for each in running
        )

    todo, running = deque(handles), list[RequestHandle]()
    try:
        while todo or running:
            while todo and may_join(todo[0]):
                handle = todo.popleft()
                running.append(handle)
                engine.enter(handle)
            _wait_for_any(engine, running)
            for handle in running:
                _take(handle, texts[handle])
            running = _unfinished(running, texts)
    except BaseException:
        for handle in handles:
            handle.is_cancelled = True
        raise
    return [(handle, texts[handle]) for handle in handles]


def _generate_all(
    engine: Engine, requests: Sequence[Request], num_at_once: int
) -> list[Generation]:
    """The texts of some requests, `n` of each, in order."""
    done = _run_all(engine, requests, num_at_once)
    return [text.generation for _, texts in done for text in texts]


def _wait_for_any(engine: Engine, handles: Sequence[RequestHandle]) -> None:
    engine.wait(lambda: any(handle.unread for handle in handles))


def _unfinished(
    handles: Sequence[RequestHandle], texts: Mapping[RequestHandle, Sequence[TextSoFar]]
) -> list[RequestHandle]:
    # A function of its own for the reason of `powerinfer.engine.queue._without`.
    return [each for each in handles if not all(text.is_over for text in texts[each])]


def _take(handle: RequestHandle, texts: Sequence[TextSoFar]) -> None:
    """Take what there is.

    Raises:
        PowerInferError: a text ended without a result.
    """
    while handle.unread:
        output = handle.unread.popleft()
        text = texts[output.index]
        text.add(output)
        del output
        text.raise_error()


def _scoring(item: "ContextAndContinuation") -> Request:
    """The request that scores a continuation; its last token is never computed."""
    return Request(
        prompt_ids=(*item.context, *item.continuation[:-1]),
        params=SamplingParams(max_tokens=0),
        prompt_logprobs=1,
        scored_ids=item.continuation,
    )


def _have_other_contexts(one: Request, other: Request) -> bool:
    """Whether two requests score continuations of different contexts."""
    return _context(one) != _context(other)


def _context(request: Request) -> Sequence[int]:
    return request.prompt_ids[: (request.first_scored or 0) + 1]


def _checked_kinds(is_prompt: Sequence[bool]) -> list[bool]:
    """One bool for each token of a prompt."""
    kinds = list(is_prompt) if isinstance(is_prompt, Iterable) else None
    if kinds is None or not all(kind in (False, True) for kind in kinds):
        raise PromptError(f"is_prompt must be one bool for each token, got {is_prompt!r}")
    return [bool(kind) for kind in kinds]
