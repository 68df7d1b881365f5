"""Byte-level BPE (GPT-2, Llama 3, Qwen2, Falcon ...) on the Hugging Face `tokenizers` library."""

import logging
import re
from collections.abc import Mapping, Sequence

import tokenizers
from tokenizers import models, pre_tokenizers

from powerinfer._program_end import library_call
from powerinfer.errors import PromptError, TokenizerError
from powerinfer.tokenizer.pieces import BYTE_CHARACTERS
from powerinfer.tokenizer.pre_tokenizers import PreTokenizer
from powerinfer.tokenizer.vocabulary import TokenType, Vocabulary

__all__ = ["ByteLevelEncoder", "library_pre_tokenizer"]

_log = logging.getLogger(__name__)

# Characters per call of the library, which needs some hundred bytes of memory for each.
_STRETCH = 1 << 18
# If the number of tokens is limited, stretches exceed their usual length by this much.
_SHORT_STRETCH = 1 << 12
# Every expression of `pre_tokenizers` splits between a letter and a space, and none has a
# lookbehind, so splitting there first changes nothing.
_SAFE_CUT = re.compile("[A-Za-z](?= )")
# Bytes that never occur in UTF-8: a vocabulary without them can still encode any text.
_NEVER_IN_UTF8 = frozenset((0xC0, 0xC1, *range(0xF5, 0x100)))


class ByteLevelEncoder:
    """Splits text by regular expressions, maps it to the byte alphabet and merges by rank."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Build the library's tokenizer.

        Raises:
            TokenizerError: the library refuses the vocabulary.
        """
        words = _mergeable(vocabulary)
        self._unknown = [] if vocabulary.unknown_id is None else [vocabulary.unknown_id]
        self._vocab_size = len(vocabulary)
        self.byte_ids = tuple(self._byte_id(words, vocabulary, byte) for byte in range(256))
        self._lacks_bytes = False
        for byte, character in enumerate(BYTE_CHARACTERS):
            if character not in words and byte not in _NEVER_IN_UTF8:
                # The library drops unknown characters; a stand-in keeps their place.
                words[character] = self._vocab_size + byte
                self._lacks_bytes = True
        self._tokenizer = tokenizers.Tokenizer(_model(words, vocabulary))
        self._tokenizer.pre_tokenizer = library_pre_tokenizer(vocabulary.pre)

    def _byte_id(
        self, words: Mapping[str, int], vocabulary: Vocabulary, byte: int
    ) -> Sequence[int]:
        token_id = words.get(BYTE_CHARACTERS[byte])
        # A user-defined token stands for the character itself, not for the byte it denotes.
        if token_id is None or vocabulary.types[token_id] is TokenType.USER_DEFINED:
            return self._unknown
        return (token_id,)

    def encode(self, text: str, at_most: int | None = None) -> list[int]:
        """Encode text without surrogates.

        Args:
            at_most: stop early once there are more than this many tokens.

        Raises:
            PromptError: the library's expression engine gave up on the text.
        """
        ids: list[int] = []
        stretch = _STRETCH if at_most is None else min(_STRETCH, _SHORT_STRETCH + 4 * at_most)
        start = 0
        while start < len(text) and (at_most is None or len(ids) <= at_most):
            end = _next_cut(text, start, stretch)
            ids += self._encode_stretch(text[start:end])
            start = end
        return ids

    def _encode_stretch(self, text: str) -> list[int]:
        try:
            with library_call():
                ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # noqa: BLE001  the library's panics are not Exceptions
            raise PromptError(
                f"the tokenizer library failed on {len(text)} characters without a word "
                f"boundary ({error}); break the text up"
            ) from None
        if not self._lacks_bytes:
            return ids
        known: list[int] = []
        for token_id in ids:
            known += (token_id,) if token_id < self._vocab_size else self._unknown
        return known


def library_pre_tokenizer(pre: PreTokenizer) -> pre_tokenizers.PreTokenizer:
    """Build the library's object that splits text by the stages and maps it to byte characters."""
    stages = [pre_tokenizers.Split(tokenizers.Regex(stage), "isolated") for stage in pre.stages]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*stages, to_bytes])


def _next_cut(text: str, start: int, stretch: int) -> int:
    if len(text) - start <= stretch:
        return len(text)
    cut = _SAFE_CUT.search(text, start + stretch)
    return cut.end() if cut else len(text)


def _mergeable(vocabulary: Vocabulary) -> dict[str, int]:
    """Return the ids of tokens made by merging: all but the special ones."""
    words = dict(vocabulary.ids_by_text)
    for token_id, token_type in enumerate(vocabulary.types):
        if token_type in (TokenType.CONTROL, TokenType.UNKNOWN):
            words.pop(vocabulary.texts[token_id], None)
    if _is_text("".join(words)):
        return words
    return {text: token_id for text, token_id in words.items() if _is_text(text)}


def _is_text(text: str) -> bool:
    """Return whether a string has no surrogates, which the library refuses."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _model(words: dict[str, int], vocabulary: Vocabulary) -> models.BPE:
    # A merge longer than every token makes the library panic, so results are looked up first.
    merges = [(a, b) for a, b in vocabulary.merges if a + b in words]
    try:
        return _library_model(words, merges, vocabulary)
    except TokenizerError:
        merges = [(a, b) for a, b in merges if a in words and b in words]
        return _library_model(words, merges, vocabulary)
    finally:
        if missing := len(vocabulary.merges) - len(merges):
            _log.warning("%d merges name missing tokens and are ignored", missing)


def _library_model(
    words: dict[str, int], merges: list[tuple[str, str]], vocabulary: Vocabulary
) -> models.BPE:
    try:
        with library_call():
            return models.BPE(words, merges, ignore_merges=vocabulary.pre.ignore_merges)
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # noqa: BLE001  the library's panics are not Exceptions
        raise TokenizerError(f"the tokenizer library refuses the vocabulary: {error}") from None
