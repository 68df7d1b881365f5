"""A conversation with a model: messages, its chat template, one answer at a time."""

from collections.abc import Generator

from powerinfer.engine.generation import Generation
from powerinfer.engine.llm import LLM
from powerinfer.engine.messages import message_ids
from powerinfer.engine.prompts import prompt_ids
from powerinfer.engine.sampling_params import SamplingParams
from powerinfer.errors import PromptError

__all__ = ["Conversation"]


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
        self._params = llm.chat_params(params)
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
                return prompt_ids(self._llm.loaded, self._encode())
            except PromptError:
                if not self._drops_old or len(self.messages) < 3:
                    raise
                del self.messages[:2]
                self.num_dropped += 2

    def _encode(self) -> list[int]:
        return message_ids(self._llm.loaded.tokenizer, [*self._system, *self.messages])
