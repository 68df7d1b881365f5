"""BPE by ranked merges on characters (Gemma 4), on the Hugging Face `tokenizers` library.

Spaces are written as U+2581, and nothing splits a line into words: merges run over all of it.
Characters in no token fall back to byte tokens. llama.cpp calls such a vocabulary ``gemma4``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

import tokenizers
from tokenizers import models

from powerinfer._program_end import library_call
from powerinfer.errors import PromptError, TokenizerError
from powerinfer.tokenizer.sentencepiece_bpe import SPACE_SIGN, safe_cut
from powerinfer.tokenizer.vocabulary import TokenType, Vocabulary

__all__ = ["RawBPEEncoder"]

# Lines, and the line breaks between them; no token has both.
_RUNS = re.compile(r"\n+|[^\n]+")
# Characters per call of the library, split where that changes nothing.
_STRETCH = 1 << 14


class RawBPEEncoder:
    """Merges the characters of each line by rank.

    Attributes:
        byte_ids: ids for each byte value: its byte token, else the unknown token, else none.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Hand the vocabulary to the library.

        Raises:
            TokenizerError: the library refuses the vocabulary.
        """
        words = {
            text: token_id
            for text, token_id in vocabulary.ids_by_text.items()
            if vocabulary.types[token_id] not in (TokenType.CONTROL, TokenType.UNKNOWN)
            and _is_text(text)
        }
        unknown = [] if vocabulary.unknown_id is None else [vocabulary.unknown_id]
        self.byte_ids: tuple[Sequence[int], ...] = tuple(
            (words[name],) if (name := _byte_name(value)) in words else unknown
            for value in range(256)
        )
        self._vocab_size = len(vocabulary)
        self._breaks = {text: words[text] for text in words if not text.strip("\n")}
        self._cut = safe_cut(vocabulary)
        self._tokenizer = tokenizers.Tokenizer(_model(words, vocabulary))

    def encode(self, text: str, at_most: int | None = None) -> list[int]:
        """Encode text without surrogates.

        Args:
            at_most: stop early once there are more than this many tokens.

        Raises:
            PromptError: the library failed on the text.
        """
        ids: list[int] = []
        for run in self._runs(text):
            if at_most is not None and len(ids) > at_most:
                break
            known = self._breaks.get(run)
            if known is not None:
                ids.append(known)
                continue
            # Ids past the vocabulary stand for missing bytes, in order.
            for token_id in self._merged(run):
                is_known = token_id < self._vocab_size
                ids += (token_id,) if is_known else self.byte_ids[token_id - self._vocab_size]
        return ids

    def _runs(self, text: str) -> Iterator[str]:
        """Yield lines, or parts of long ones, and line breaks."""
        for run in _RUNS.findall(text):
            start = 0
            while len(run) - start > _STRETCH and (cut := self._cut.search(run, start + _STRETCH)):
                yield run[start : cut.end()]
                start = cut.end()
            yield run[start:]

    def _merged(self, run: str) -> list[int]:
        try:
            with library_call():
                found = self._tokenizer.encode(
                    run.replace(" ", SPACE_SIGN), add_special_tokens=False
                )
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # noqa: BLE001  the library's panics are not Exceptions
            raise PromptError(
                f"the tokenizer library failed on a line of {len(run)} characters ({error}); "
                "break the text up"
            ) from None
        ids: list[int] = found.ids
        return ids


def _model(words: Mapping[str, int], vocabulary: Vocabulary) -> models.BPE:
    """Build the library's model; bytes without a token get ids past the vocabulary."""
    stand_ins = {_byte_name(value): len(vocabulary) + value for value in range(256)}
    merges = [(a, b) for a, b in vocabulary.merges if a in words and b in words and a + b in words]
    try:
        with library_call():
            return models.BPE({**stand_ins, **words}, merges, byte_fallback=True)
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # noqa: BLE001  the library's panics are not Exceptions
        raise TokenizerError(f"the tokenizer library refuses the vocabulary: {error}") from None


def _byte_name(value: int) -> str:
    return f"<0x{value:02X}>"


def _is_text(text: str) -> bool:
    """Return whether a string has no surrogates, which the library refuses."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
