"""A conversation with a model: messages, its chat template, one answer at a time."""

from collections.abc import Callable, Generator, Sequence

from powerinfer.engine.llm import LLM
from powerinfer.engine.text_stream import Generation, TextStream
from powerinfer.errors import PromptError
from powerinfer.prompts.long_prompts import encode_prompt
from powerinfer.prompts.messages import answer, message_ids
from powerinfer.prompts.reasoning import ends_within, shown_answer
from powerinfer.prompts.system_prompt import builtin_system_prompt
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.tokenizer import Tokenizer

__all__ = ["Conversation", "Message"]

Message = dict[str, str]
"""`role` (system, user or assistant), `content`, and perhaps `reasoning_content`."""

# An answer without a limit may use at least this part of the context.
_ANSWER_PART = 4


class Conversation:
    """Keeps the messages of a conversation and turns them into prompts.

    A conversation is one growing sequence: tokens of earlier answers count as generated, not as
    prompt, so that `reuse_prefix` finds their keys and values without changing a bit. This holds as
    far as the template writes the same tokens again; everything after the first different token is
    prompt. On a model with state all tokens are prompt, as only states of prompts are kept.

    Attributes:
        messages: all messages, each with `role` and `content`, including forgotten ones.
        last: the last answer with its metrics and the reason of its end; None before the first.
        num_dropped: number of messages at the beginning that the model no longer sees.
    """

    def __init__(
        self,
        llm: LLM,
        params: SamplingParams,
        *,
        system: str | None = None,
        drops_old: bool = True,
        as_text: Callable[[Sequence[Message]], str] | None = None,
    ) -> None:
        """Start without messages.

        Args:
            llm: the model; with `reuse_prefix`, earlier turns are not computed again.
            params: sampling parameters of every answer.
            system: instruction before the first message.
            drops_old: forget the oldest turns when the conversation leaves no room for an answer,
                until it fills at most half of the context; else a conversation that outgrows the
                context is an error.
            as_text: function that writes the prompt in place of the model's chat template.
        """
        self._llm = llm
        self._as_text = as_text
        self.params = params
        self.system = system
        self._drops_old = drops_old
        self.messages: list[Message] = []
        self.last: Generation | None = None
        self.num_dropped = 0
        self._stream: TextStream | None = None
        # Tokens of the last prompt and its answer, each with whether it was prompt.
        self._history: list[tuple[int, bool]] = []

    @property
    def params(self) -> SamplingParams:
        """Sampling parameters of the next answers."""
        return self._given

    @params.setter
    def params(self, params: SamplingParams) -> None:
        self._given, self._params = params, self._llm.chat_params(params)

    @property
    def system(self) -> str | None:
        """System message of the next answers; None if only the template may write one."""
        return self._system[0]["content"] if self._system else None

    @system.setter
    def system(self, text: str | None) -> None:
        self._system = [{"role": "system", "content": text}] if text else []

    @property
    def builtin_system(self) -> str | None:
        """What the chat template says without a system message; None if nothing."""
        return None if self._as_text is not None else builtin_system_prompt(self._tokenizer)

    @property
    def transcript(self) -> list[Message]:
        """All messages, after the system message: the one that was set, or the template's own."""
        own = self.builtin_system if not self._system else None
        system = self._system if own is None else [{"role": "system", "content": own}]
        return [*system, *self.messages]

    def clear(self) -> None:
        """Forget everything but the system message."""
        self.messages.clear()
        self.num_dropped = 0

    def undo(self) -> str | None:
        """Remove the last message and its answer; return the message, None if there is none."""
        asked_at = [i for i, each in enumerate(self.messages) if each["role"] == "user"]
        if not asked_at:
            return None
        asked = self.messages[asked_at[-1]]["content"]
        del self.messages[asked_at[-1] :]
        # Messages dropped to make room for it may fit again.
        self.num_dropped = 0
        return asked

    def ask(self, text: str) -> Generator[str]:
        """Send a message and iterate over the pieces of the answer.

        Reasoning stands between `<think>` and `</think>`, even if the model writes other marks
        (gpt-oss) or the prompt contains the first of them.

        The answer so far is kept if the iteration ends early, by Ctrl-C or `close`. An error before
        the answer begins removes the message.

        Raises:
            PromptError: the conversation is longer than the context.
        """
        num_messages = len(self.messages)
        # Read now: the model may be closed before its answer ends, and nothing here may keep it.
        is_harmony = self._tokenizer.is_harmony
        try:
            self.messages.append({"role": "user", "content": text})
            token_ids = self._prompt_ids()
            is_prompt = self._is_prompt(token_ids)
            self._stream = stream = self._llm.stream(token_ids, self._params, is_prompt=is_prompt)
        except BaseException:
            del self.messages[num_messages:]
            raise
        opened = "<think>\n" if ends_within(self._tokenizer, token_ids) else ""
        try:
            yield from shown_answer(self._tokenizer, token_ids, stream)
        finally:
            stream.close()
            self.last = stream.generation
            self._history = list(zip(token_ids, is_prompt, strict=True))
            self._history += [(token_id, False) for token_id in self.last.token_ids]
            content = (opened + self.last.text if self.last.text else "").strip()
            said = answer({"role": "assistant", "content": content}, is_harmony=is_harmony)
            self.messages.append({key: str(value) for key, value in said.items()})

    def last_token_ids(self, count: int) -> list[int]:
        """The last tokens of the answer that is read, or of the one before."""
        return [] if self._stream is None else self._stream.last_token_ids(count)

    def _is_prompt(self, token_ids: list[int]) -> list[bool]:
        """Tell for each token of a prompt whether it was given, not generated here earlier."""
        is_prompt = [True] * len(token_ids)
        if self._llm.loaded.model.config.state_mixers:
            return is_prompt
        pairs = zip(token_ids, self._history, strict=False)
        for index, (token_id, (known, kind)) in enumerate(pairs):
            if token_id != known:
                break
            is_prompt[index] = kind
        return is_prompt

    def _prompt_ids(self) -> list[int]:
        """Encode the conversation, dropping old turns if that is needed and wanted.

        Dropping frees half of the context at once, since a prompt with another beginning has to be
        computed from its start.
        """
        room = self._room_for_answer()
        first = self.num_dropped if self._drops_old else 0
        while True:
            # The newest message, which is to be answered, always stays.
            may_drop = self._drops_old and first + 1 < len(self.messages)
            try:
                token_ids = self._encode(first)
                has_room = len(token_ids) + room <= self._context_length
            except PromptError:
                if not may_drop:
                    raise
                has_room = False
            if has_room or not may_drop:
                self.num_dropped = first
                return token_ids
            first += 2
            room = max(room, self._context_length - self._context_length // 2)

    @property
    def _tokenizer(self) -> Tokenizer:
        return self._llm.loaded.tokenizer

    @property
    def _context_length(self) -> int:
        return self._llm.loaded.model.context_length

    def _room_for_answer(self) -> int:
        """Return the number of tokens that old turns must leave free."""
        limit = self._params.max_tokens
        if limit is None:
            return self._context_length // _ANSWER_PART
        return min(limit, self._context_length // 2)

    def _encode(self, first: int = 0) -> list[int]:
        """Encode the conversation from message `first` on."""
        shown = [*self._system, *self.messages[first:]]
        if self._as_text is None:
            return message_ids(self._tokenizer, shown, self._context_length)
        return encode_prompt(self._tokenizer, self._as_text(shown), self._context_length)
