"""The public face of the engine: load a model, generate texts, stream one, talk."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from powerinfer.calibration.observing import FFNObserver, observable, observed
from powerinfer.calibration.recall import with_recall_meter
from powerinfer.engine.request import Request
from powerinfer.engine.scoring_methods import ScoringMethods
from powerinfer.engine.side_by_side import generate_all
from powerinfer.engine.text_stream import Generation, Reader, TextStream
from powerinfer.errors import PromptError
from powerinfer.loading import loader
from powerinfer.loading.loader import Progress
from powerinfer.options.llm_options import LLMOptions
from powerinfer.options.options import engine_options
from powerinfer.prompts.messages import Message, message_ids, with_chat_stop
from powerinfer.prompts.prompts import (
    Params,
    Prompt,
    TokenIds,
    decode_ids,
    encode_text,
    read_jobs,
    read_params,
)
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.store.default_model import find_model

if TYPE_CHECKING:
    from powerinfer.engine.text_stream import AsyncTextStream
    from powerinfer.offload.progress import PlacementProgress

__all__ = ["LLM", "Prompt"]

# Texts of one call that are lined up, as a multiple of those that run at once: the next ones are
# there when some end, and texts of others come between.
_WINDOW = 2


class LLM(ScoringMethods):
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
        loaded = loader.load(find_model(path, downloading), checked, progress, calibrating, placing)
        if loaded.options.measure_recall:
            loaded = replace(loaded, model=with_recall_meter(loaded.model))
        if observe is not None:
            loaded = replace(loaded, model=observed(loaded.model, observe))
        self._start(loaded, reading)

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
        return generate_all(self._shared, requests, _WINDOW * loaded.options.parallel)

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
    ) -> "AsyncTextStream":
        """As `stream`, for asyncio: the event loop stays free while pieces are computed.

        Raises:
            PromptError: as for `stream`.
        """
        from powerinfer.engine.text_stream import AsyncTextStream

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
        return generate_all(self._shared, [request], 1)[0]

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

    def _reader(
        self, prompt: Prompt, params: SamplingParams | None, is_prompt: Sequence[bool] | None
    ) -> Reader:
        """What takes the pieces of the one text of a stream."""
        request = self._one(prompt, params, is_prompt)
        self._shared.check_process()
        return Reader(self._shared, request)

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
        marks = None if is_prompt is None else _checked_marks(is_prompt, len(token_ids))
        return self._request(token_ids, checked, marks)

    def _request(
        self, token_ids: list[int], params: SamplingParams, marks: list[bool] | None = None
    ) -> Request:
        return Request(
            prompt_ids=token_ids,
            params=params,
            marks=marks,
            reuses_prefix=self.loaded.options.reuse_prefix,
        )


def _checked_marks(is_prompt: Sequence[bool], num_tokens: int) -> list[bool]:
    """One bool for each token of a prompt."""
    marks = list(is_prompt) if isinstance(is_prompt, Iterable) else None
    if marks is None or not all(mark in (False, True) for mark in marks):
        raise PromptError(f"is_prompt must be one bool for each token, got {is_prompt!r}")
    if len(marks) != num_tokens:
        raise PromptError(f"is_prompt has {len(marks)} entries, the prompt has {num_tokens} tokens")
    return [bool(mark) for mark in marks]
