"""`Tokenizer`: text to token ids and back, with the vocabulary of a GGUF file."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Protocol

from powerinfer.errors import TokenizerError
from powerinfer.gguf import GGUFFile
from powerinfer.tokenizer.pieces import Detokenizer, IncrementalDecoder
from powerinfer.tokenizer.special_tokens import SpecialTokens
from powerinfer.tokenizer.vocabulary import RAW_BPE, SENTENCEPIECE, Vocabulary, load_vocabulary

__all__ = ["Tokenizer"]

# Code points that never occur in UTF-8. Python maps bytes that are not UTF-8 to U+DC80 to U+DCFF;
# others come from broken UTF-16.
_SURROGATES = re.compile("([\ud800-\udfff]+)")


class _Encoder(Protocol):
    """Encoder of text without special tokens."""

    byte_ids: tuple[Sequence[int], ...]

    def encode(self, text: str, at_most: int | None = None) -> list[int]: ...


class Tokenizer:
    """Text to ids and ids to text; immutable, and safe to use from several threads.

    Every byte sequence can be encoded: bytes that are not UTF-8 are written with byte tokens, so
    that decoding gives them back, or with the unknown token where the vocabulary has no byte
    tokens. Encoding takes time in proportion to the text.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Build the encoder for a checked vocabulary.

        Raises:
            TokenizerError: the library below refuses the vocabulary.
        """
        self._encoder = _encoder(vocabulary)
        self._specials = SpecialTokens(vocabulary)
        # The encoder has its own copy of merges and scores; ours would only take memory.
        self._vocabulary = replace(vocabulary, merges=(), scores=())
        self._detokenizer = Detokenizer(self._vocabulary)

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> "Tokenizer":
        """Build a tokenizer from the metadata of an open file; tensors are not needed.

        Raises:
            GGUFError: the vocabulary is missing, inconsistent or absurd.
            UnsupportedError: it is of a kind that is not implemented; the message lists what is.
        """
        return cls.from_metadata(file.metadata, source=str(file.paths[0]))

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, object], *, source: str = "metadata"
    ) -> "Tokenizer":
        """Build a tokenizer from GGUF key-value pairs; `source` names them in error messages."""
        vocabulary = load_vocabulary(metadata, source=source)
        try:
            return cls(vocabulary)
        except TokenizerError as error:
            raise TokenizerError(f"{source}: {error}") from error

    @property
    def bos_id(self) -> int | None:
        """Token that starts a text; None if the vocabulary has none."""
        return self._vocabulary.bos_id

    @property
    def eos_id(self) -> int | None:
        """Token that ends a text; None if the vocabulary has none."""
        return self._vocabulary.eos_id

    @property
    def eog_ids(self) -> frozenset[int]:
        """Every token that ends a generation: end of text, of a turn, of a message."""
        return self._vocabulary.eog_ids

    @property
    def mark_ids(self) -> frozenset[int]:
        """Control tokens that are shown, since they divide an answer into parts (gpt-oss)."""
        return self._vocabulary.mark_ids

    @property
    def is_harmony(self) -> bool:
        """True if marks divide an answer into parts, some of them reasoning (gpt-oss)."""
        return self._vocabulary.is_harmony

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return len(self._vocabulary)

    @property
    def add_bos(self) -> bool:
        """True if the model expects BOS before a prompt; never true without a BOS token."""
        return self._vocabulary.add_bos

    @property
    def add_eos(self) -> bool:
        """True if the model expects EOS after a text; never true without an EOS token."""
        return self._vocabulary.add_eos

    @property
    def drops_first_space(self) -> bool:
        """True if a space that begins a text is not part of it: encoding puts it there."""
        return self._vocabulary.add_space_prefix

    @property
    def model(self) -> str:
        """Kind of vocabulary, as `tokenizer.ggml.model` names it."""
        return self._vocabulary.model

    @property
    def chat_template(self) -> str | None:
        """The model's Jinja template for conversations; see `powerinfer.tokenizer.chat`."""
        return self._vocabulary.chat_template

    def encode(
        self,
        text: str | bytes,
        *,
        add_bos: bool | None = None,
        add_eos: bool = False,
        parse_special: bool = False,
        at_most: int | None = None,
        is_inside: bool = False,
    ) -> list[int]:
        """Turn text into token ids.

        Args:
            text: bytes are taken as UTF-8; invalid bytes become byte tokens.
            add_bos: start with BOS; None does as the model expects.
            add_eos: end with EOS, whatever the model expects.
            parse_special: parse control tokens in the text (``<|im_end|>``). Leave it off for text
                of a user. User-defined tokens are always parsed.
            at_most: stop early once there are more than this many tokens.
            is_inside: the text is in the middle of another: no space is added to it.

        Raises:
            TokenizerError: BOS or EOS is asked for and the vocabulary has none.
            PromptError: over ten million characters without any boundary between words.
        """
        if isinstance(text, bytes):
            text = text.decode("utf-8", "surrogateescape")
        ids: list[int] = []
        if self.add_bos if add_bos is None else add_bos:
            ids.append(self._required("BOS", self.bos_id))
        after_special, adds_space = True, self.drops_first_space and not is_inside
        for part in self._specials.partition(text, parse_special=parse_special):
            if isinstance(part, int):
                ids.append(part)
            else:
                plain = f" {part}" if after_special and adds_space else part
                self._encode_plain(plain, ids, at_most)
            if at_most is not None and len(ids) > at_most:
                return ids
            after_special = isinstance(part, int)
        if add_eos:
            ids.append(self._required("EOS", self.eos_id))
        return ids

    def encode_inside(self, text: str, at_most: int | None = None) -> list[int]:
        """Encode text in the middle of another; control tokens in it are plain text."""
        return self.encode(text, add_bos=False, at_most=at_most, is_inside=True)

    def _encode_plain(self, text: str, ids: list[int], at_most: int | None) -> None:
        """Append the ids of text without special tokens, which may contain surrogates."""
        for index, stretch in enumerate(_SURROGATES.split(text)):
            if at_most is not None and len(ids) > at_most:
                return
            if index % 2 == 0:
                ids += self._encoder.encode(
                    stretch, None if at_most is None else at_most - len(ids)
                )
            else:
                for byte in _raw_bytes(stretch):
                    ids += self._encoder.byte_ids[byte]

    def least_tokens(self, text: str | bytes) -> int:
        """Return a lower bound on the number of tokens, from the length alone; 0 if unknown."""
        longest = self._longest_token
        return 0 if longest is None else -(-len(text) // longest)

    @cached_property
    def _longest_token(self) -> int | None:
        """Upper bound on the bytes of text that one token can encode, or None."""
        if self._vocabulary.strips_right or not all(self._encoder.byte_ids):
            # White space after special tokens, or text the vocabulary cannot encode, is dropped.
            return None
        return self._detokenizer.longest_text()

    @staticmethod
    def _required(name: str, token_id: int | None) -> int:
        if token_id is None:
            raise TokenizerError(f"the vocabulary has no {name} token to add")
        return token_id

    def decode(self, token_ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Turn ids into text; bytes that are not UTF-8 become U+FFFD.

        Args:
            token_ids: ids in [0, `vocab_size`).
            skip_special: omit control tokens; otherwise their names are included.

        Raises:
            TokenizerError: an id is outside the vocabulary.
        """
        return self.decode_bytes(token_ids, skip_special=skip_special).decode("utf-8", "replace")

    def decode_bytes(self, token_ids: Iterable[int], *, skip_special: bool = True) -> bytes:
        """Turn ids into the bytes they stand for, UTF-8 or not; arguments as `decode`."""
        return self._detokenizer.decode_bytes(token_ids, skip_special=skip_special)

    def new_stream(
        self, prompt_ids: Sequence[int] = (), *, skip_special: bool = True
    ) -> IncrementalDecoder:
        """Start decoding ids one by one.

        Args:
            prompt_ids: ids that the stream continues. Their text is not returned, but a vocabulary
                that adds a space before every text only drops it at the beginning.
            skip_special: as in `decode`.
        """
        return IncrementalDecoder(self._detokenizer, prompt_ids, skip_special=skip_special)

    def piece(self, token_id: int) -> str:
        """Return the text of a token, spaces and names of control tokens included.

        Raises:
            TokenizerError: the id is outside the vocabulary.
        """
        return self.piece_bytes(token_id).decode("utf-8", "replace")

    def piece_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token, which may be part of a character; as `piece`."""
        piece, _ = self._detokenizer.step(token_id, at_start=False, skip_special=False)
        return piece

    def is_special(self, token_id: int) -> bool:
        """Return whether a token is not text (control, unknown); such tokens are not printed.

        Raises:
            TokenizerError: the id is outside the vocabulary.
        """
        self._detokenizer.step(token_id, at_start=False, skip_special=True)
        return self._vocabulary.is_special(token_id)


def _encoder(vocabulary: Vocabulary) -> _Encoder:
    # Imported here: each library takes tens of milliseconds, and a vocabulary needs only one.
    if vocabulary.model == SENTENCEPIECE:
        from powerinfer.tokenizer.sentencepiece_bpe import SentencePieceEncoder

        return SentencePieceEncoder(vocabulary)
    if vocabulary.model == RAW_BPE:
        from powerinfer.tokenizer.raw_bpe import RawBPEEncoder

        return RawBPEEncoder(vocabulary)
    from powerinfer.tokenizer.byte_level import ByteLevelEncoder

    return ByteLevelEncoder(vocabulary)


def _raw_bytes(surrogates: str) -> bytes:
    try:
        return surrogates.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return surrogates.encode("utf-8", "surrogatepass")
