"""The public face of the engine: load a model, generate texts, stream one."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias, Unpack, cast

from powerinfer.engine import loader
from powerinfer.engine.calibration.recall import with_recall_meter
from powerinfer.engine.generation import Generation, TextStream
from powerinfer.engine.loader import LoadedModel, Progress
from powerinfer.engine.long_prompts import encode_prompt, too_long
from powerinfer.engine.options import LLMOptions, engine_options
from powerinfer.engine.sampling_params import SamplingParams
from powerinfer.engine.step import TokenSequence
from powerinfer.errors import PowerInferError, PromptError

if TYPE_CHECKING:
    from powerinfer.engine.offload.progress import PlacementProgress

__all__ = ["LLM", "Prompt"]

Prompt: TypeAlias = str | bytes | Sequence[int]
"""Text, UTF-8 bytes (which may be broken), or token ids that are used as they are."""

_ANOTHER_CALL = (
    "another call of the same LLM: finish one stream before starting the next, or load the model "
    "twice"
)


class LLM:
    """A language model loaded from a GGUF file.

    Example::

        with LLM("model.gguf", threads=4) as llm:
            print(llm.generate("Once upon a time", SamplingParams(max_tokens=32))[0].text)

    One object computes one sequence at a time. Threads may share it: calls of `generate` wait for
    each other, and a stream that another call ends raises `PowerInferError` when it is asked on.
    """

    def __init__(
        self,
        path: Path | str | None = None,
        *,
        progress: Progress | None = None,
        calibrating: Progress | None = None,
        placing: "PlacementProgress | None" = None,
        reading: Progress | None = None,
        **options: Unpack[LLMOptions],
    ) -> None:
        """Load a model.

        Args:
            path: a GGUF file, the first part of a split file, or a folder with one model; None
                takes the model that comes with the package.
            progress: called with (bytes prepared, bytes in all) while loading.
            calibrating: called with (layers done, layers in all) where `sparsity="auto"` or a dial
                makes the model be calibrated now.
            placing: told where something is measured to place the model on a GPU.
            reading: called with (tokens computed, tokens in all) while a prompt is computed.
            **options: see `powerinfer.engine.options`, where each option has its entry.

        Raises:
            CalibrationError: the model's stored calibration is damaged or belongs to another.
            GGUFError: the file is missing or malformed.
            UnsupportedError: an option, architecture or tensor type that is not implemented.
            PromptError: an option is out of its range.
            TokenizerError: the vocabulary cannot be used.
            DeviceError: the asked-for kernels or GPU are not available.
            PlacementError: the plan that was named for the GPU cannot be used.
        """
        self._reading = reading
        # Reentrant: what holds it calls the streams, which take it themselves.
        self._lock = threading.RLock()
        loaded = loader.load(path, engine_options(**options), progress, calibrating, placing)
        if loaded.options.measure_recall:
            loaded = replace(loaded, model=with_recall_meter(loaded.model))
        self._start(loaded)

    @classmethod
    def of(cls, loaded: LoadedModel) -> Self:
        """An `LLM` that runs what is loaded already; several may share weights, not a step."""
        llm = cls.__new__(cls)
        llm._reading = None
        llm._lock = threading.RLock()
        llm._start(loaded)
        return llm

    def _start(self, loaded: LoadedModel) -> None:
        self._loaded: LoadedModel | None = loaded
        self._sequence: TokenSequence | None = None
        self._stream: TextStream | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def loaded(self) -> LoadedModel:
        """What was loaded: file, configuration, tokenizer, and what runs it.

        Raises:
            PowerInferError: the model was closed.
        """
        if self._loaded is None:
            raise PowerInferError("this LLM was closed; make a new one")
        return self._loaded

    def close(self) -> None:
        """Give the memory back at once; the object cannot be used afterwards.

        This ends every stream, even one that is kept. Results of `loaded` and `new_sequence` go on
        working, and keep their memory as long as they are referenced.
        """
        with self._lock:
            self._end_stream("closing its LLM; read a stream before that")
            placement = None if self._loaded is None else self._loaded.placement
            device = None if placement is None else placement.device
            self._sequence = self._loaded = placement = None
        if device is not None:
            from powerinfer.engine.offload.place import give_memory_back

            give_memory_back(device)

    def generate(
        self, prompts: Prompt | Iterable[Prompt], params: SamplingParams | None = None
    ) -> list[Generation]:
        """Generate a text for each prompt; waits while another thread generates.

        Args:
            prompts: one prompt, or several.
            params: sampling parameters; each prompt starts with the same seed.

        Returns:
            One `Generation` per prompt, in order.

        Raises:
            PromptError: a prompt is empty and the vocabulary has no BOS token, or it is longer than
                the context, or the context was full before `max_tokens` were generated.
            NumericsError: the model produced NaN or infinity; names the layer.
        """
        with self._lock:
            return [self._finish(self.stream(prompt, params)) for prompt in _as_prompts(prompts)]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> TextStream:
        """Generate a text piece by piece; a piece never splits a character.

        The prompt is checked now, computing starts with the first piece. The next call of `stream`,
        `generate` or `new_sequence`, from whatever thread, ends this stream: if its text had not
        ended, asking it for more raises `PowerInferError`.

        Raises:
            PromptError: as for `generate`.
        """
        with self._lock:
            prompt_ids = self.encode(prompt)
            self._end_stream()
            sequence = self._prepare(prompt_ids)
            params = params or SamplingParams()
            self._stream = TextStream(self.loaded, sequence, prompt_ids, params, self._lock)
            return self._stream

    def new_sequence(self) -> TokenSequence:
        """Empty the KV cache and return the sequence that owns it, for computing logits directly.

        Ends a running stream. The sequence itself is for one thread.
        """
        with self._lock:
            self._end_stream()
            return self._prepare([])

    def _end_stream(self, by: str = _ANOTHER_CALL) -> None:
        """Two streams would write into the same keys and values."""
        if self._stream is not None:
            self._stream.end(by)
            self._stream = None

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt, with BOS as the vocabulary asks, special tokens recognised.

        Raises:
            PromptError: the prompt is empty, has invalid ids or is longer than the context.
        """
        tokenizer = self.loaded.tokenizer
        if isinstance(prompt, str | bytes):
            token_ids = encode_prompt(tokenizer, prompt, self.loaded.model.context_length)
            if not token_ids and tokenizer.bos_id is not None:
                token_ids = [tokenizer.bos_id]
        else:
            token_ids = _whole_numbers(prompt)
        self._check(token_ids)
        return token_ids

    def _check(self, token_ids: list[int]) -> None:
        model = self.loaded.model
        if not token_ids:
            raise PromptError(
                "the prompt is empty, and this vocabulary has no BOS token to begin with"
            )
        vocab_size = model.config.vocab_size
        if min(token_ids) < 0 or max(token_ids) >= vocab_size:
            raise PromptError(f"token ids must be from 0 to {vocab_size - 1}")
        if len(token_ids) > model.context_length:
            raise too_long(str(len(token_ids)), model.context_length)

    def _prepare(self, prompt_ids: list[int]) -> TokenSequence:
        """The sequence, holding a prefix of the prompt that is shorter than it."""
        loaded = self.loaded
        if self._sequence is None:
            cache = loaded.take_cache()
            self._sequence = TokenSequence(
                loaded.model,
                cache,
                loaded.options.batch_size,
                self._reading,
                watches_layers=loaded.placement is None,
            )
        kept = 0
        if loaded.options.reuse_prefix:
            # The last token is computed again: its logits are what is wanted.
            kept = _shared_length(self._sequence.token_ids, prompt_ids[:-1])
        self._sequence.truncate(kept)
        return self._sequence

    @staticmethod
    def _finish(stream: TextStream) -> Generation:
        for _ in stream:
            pass
        return stream.generation


def _as_prompts(prompts: Prompt | Iterable[Prompt]) -> list[Prompt]:
    """A list of prompts, from one or several; a flat list of ids is one prompt."""
    if isinstance(prompts, str | bytes) or not isinstance(prompts, Iterable):
        return [prompts]
    listed: list[object] = list(prompts)
    ids = [int(item) for item in listed if isinstance(item, Integral)]
    if ids and len(ids) == len(listed):
        return [ids]
    # A single id among texts is refused when it is encoded.
    return cast("list[Prompt]", listed)


def _whole_numbers(prompt: object) -> list[int]:
    """Token ids of a prompt that is no text; those of numpy are fine."""
    items = list(prompt) if isinstance(prompt, Iterable) else [prompt]
    ids = [int(item) for item in items if isinstance(item, Integral)]
    if len(ids) < len(items) or not isinstance(prompt, Iterable):
        raise PromptError(
            f"a prompt is a text, UTF-8 bytes or a list of token ids, got {repr(prompt)[:60]}"
        )
    return ids


def _shared_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return min(len(a), len(b))
