"""A conversation with a model: messages, its chat template, one answer at a time."""

from collections.abc import Generator
from dataclasses import replace

from powerinfer.engine.generation import Generation
from powerinfer.engine.llm import LLM
from powerinfer.engine.sampling_params import SamplingParams
from powerinfer.errors import PromptError
from powerinfer.tokenizer import FALLBACK_TEMPLATE, render_chat

__all__ = ["Conversation"]

# Where a model without a template would begin to speak for the user (see FALLBACK_TEMPLATE).
_FALLBACK_STOP = "\nUser:"


class Conversation:
    """Keeps the messages and turns them into prompts.

    Attributes:
        messages: what was said so far, each with `role` and `content`.
        last: figures and end of the last answer, None before the first.
        num_dropped: messages that were dropped because the context was full.
    """

    def __init__(
        self,
        llm: LLM,
        params: SamplingParams,
        *,
        system: str | None = None,
        drops_old: bool = False,
    ) -> None:
        """Start without messages.

        Args:
            llm: the model; loaded with `reuse_prefix`, earlier turns are not computed again.
            params: sampling parameters of every answer.
            system: instruction that stands before the first message.
            drops_old: forget the oldest turns where the conversation outgrows the context; else
                that is an error.
        """
        self._llm = llm
        self._template = llm.loaded.tokenizer.chat_template
        if self._template is None:
            params = replace(params, stop=(*params.stop_strings, _FALLBACK_STOP))
        self._params = params
        self._system = [{"role": "system", "content": system}] if system else []
        self._drops_old = drops_old
        self.messages: list[dict[str, str]] = []
        self.last: Generation | None = None
        self.num_dropped = 0

    def clear(self) -> None:
        """Forget everything but the system message."""
        self.messages.clear()

    def ask(self, text: str) -> Generator[str]:
        """Send a message and iterate over the pieces of the answer.

        What was answered is kept even if the iteration is ended early, by Ctrl-C or `close`.

        Raises:
            PromptError: the conversation is longer than the context; the message is taken back.
        """
        self.messages.append({"role": "user", "content": text})
        try:
            prompt_ids = self._prompt_ids()
        except PromptError:
            self.messages.pop()
            raise
        stream = self._llm.stream(prompt_ids, self._params)
        try:
            yield from stream
        finally:
            stream.close()
            self.last = stream.generation
            self.messages.append({"role": "assistant", "content": self.last.text.strip()})

    def _prompt_ids(self) -> list[int]:
        """Tokens of the conversation, after dropping old turns where that is needed and wanted."""
        while True:
            try:
                # A context filled to the last token would leave no room to answer.
                return self._llm.encode(self._encode())
            except PromptError:
                if not self._drops_old or len(self.messages) < 3:
                    raise
                del self.messages[:2]
                self.num_dropped += 2

    def _encode(self) -> list[int]:
        tokenizer = self._llm.loaded.tokenizer
        text = render_chat(
            self._template or FALLBACK_TEMPLATE,
            [*self._system, *self.messages],
            bos_token=_piece(tokenizer.bos_id, self._llm),
            eos_token=_piece(tokenizer.eos_id, self._llm),
        )
        return tokenizer.encode(text, add_bos=False, parse_special=True)


def _piece(token_id: int | None, llm: LLM) -> str:
    return "" if token_id is None else llm.loaded.tokenizer.piece(token_id)
