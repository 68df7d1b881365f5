"""The vocabulary of a GGUF file, checked: token texts, types, scores, merges, special ids.

Only reads `tokenizer.*` metadata; encoders split text. Defaults for absent keys are those of
llama.cpp, because converters omit values equal to them.
"""

import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from powerinfer.errors import TokenizerError, UnsupportedError
from powerinfer.tokenizer.pre_tokenizers import PreTokenizer, pre_tokenizer
from powerinfer.tokenizer.token_types import (
    TokenType,
    call_marks,
    end_ids,
    harmony_marks,
    mark_end_texts,
)

__all__ = ["TokenType", "Vocabulary", "load_vocabulary"]

_log = logging.getLogger(__name__)
_PREFIX = "tokenizer.ggml."
SENTENCEPIECE, BYTE_LEVEL, RAW_BPE = "llama", "gpt2", "gemma4"
SUPPORTED_MODELS = (SENTENCEPIECE, BYTE_LEVEL, RAW_BPE)

# Default ids: SentencePiece's own order, and Falcon's <|endoftext|>.
_SENTENCEPIECE_DEFAULTS = {"bos": 1, "eos": 2, "unknown": 0}
_BYTE_LEVEL_DEFAULT_END = 11

_BYTE_TEXT = re.compile("<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class Vocabulary:
    """Token texts by id with all their data from the file.

    Attributes:
        model: ``llama`` (SentencePiece BPE by score), ``gpt2`` (byte-level BPE by merges) or
            ``gemma4`` (BPE by merges on characters).
        texts: text of each id as stored; byte-level texts are in the GPT-2 byte alphabet.
        types: type of each id.
        scores: score of each id; empty where the file has none.
        merges: pairs in order of rank, without repetitions; empty for ``llama``.
        pre: splitting of text before merging in a byte-level vocabulary.
        eog_ids: tokens that end an answer.
        mark_ids: control tokens that are shown, because they divide an answer into parts: those of
            gpt-oss, and those around tool calls.
        is_harmony: `mark_ids` are those of gpt-oss.
        strips_right: ASCII white space after a special token in text is dropped (Phi-3).
    """

    model: str
    texts: tuple[str, ...]
    types: tuple[TokenType, ...]
    scores: tuple[float, ...]
    merges: tuple[tuple[str, str], ...]
    pre: PreTokenizer
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    eog_ids: frozenset[int]
    mark_ids: frozenset[int]
    is_harmony: bool
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    strips_right: bool
    chat_template: str | None

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self.texts)

    @cached_property
    def ids_by_text(self) -> dict[str, int]:
        """Id of each text; the last of equal texts."""
        return {text: token_id for token_id, text in enumerate(self.texts)}

    def is_special(self, token_id: int) -> bool:
        """Return whether a token is not shown: control or unknown, and not a mark."""
        is_text = self.types[token_id] not in (TokenType.CONTROL, TokenType.UNKNOWN)
        return not is_text and token_id not in self.mark_ids


def load_vocabulary(metadata: Mapping[str, object], *, source: str) -> Vocabulary:
    """Read and check the tokenizer keys of a GGUF file.

    Args:
        metadata: key-value pairs; arrays of numbers as numpy arrays or lists, of strings as lists.
        source: the file's name, for messages.

    Raises:
        TokenizerError: a key is missing, has a wrong type, length or value.
        UnsupportedError: the vocabulary is of a kind that is not implemented.
    """
    return _Reader(metadata, source).vocabulary()


class _Reader:
    """Reads typed values from metadata; every message names the file and the key."""

    def __init__(self, metadata: Mapping[str, object], source: str) -> None:
        self._metadata = metadata
        self._source = source

    def vocabulary(self) -> Vocabulary:
        model = self._model()
        texts = self._texts()
        ids = {text: token_id for token_id, text in enumerate(texts)}
        types = self._types(texts, model)
        mark_end_texts(ids, types)
        is_llama = model == SENTENCEPIECE
        architecture = str(self._metadata.get("general.architecture", ""))
        pre = PreTokenizer(())
        if model == BYTE_LEVEL:
            pre = pre_tokenizer(self._string(f"{_PREFIX}pre"), architecture)
        bos, eos, unknown = self._special_ids(model, texts, types)
        if _PREFIX + "token_type" not in self._metadata:
            for token_id in (bos, eos, unknown):
                if token_id is not None:
                    types[token_id] = TokenType.CONTROL
        named = (self._token_id(f"{name}_token_id", len(texts)) for name in ("eot", "eom"))
        ends = [token_id for token_id in (eos, *named) if token_id is not None]
        return Vocabulary(
            model=model,
            texts=tuple(texts),
            types=tuple(types),
            scores=self._scores(len(texts)) if is_llama else (),
            merges=() if is_llama else self._merges(),
            pre=pre,
            bos_id=bos,
            eos_id=eos,
            unknown_id=unknown,
            eog_ids=end_ids(ids, types, ends),
            mark_ids=harmony_marks(ids) | call_marks(ids),
            is_harmony=bool(harmony_marks(ids)),
            # Gemma 4 always begins with it, whatever a file says.
            add_bos=bos is not None
            if model == RAW_BPE
            else self._adds("add_bos_token", bos, default=is_llama or pre.add_bos),
            add_eos=self._adds("add_eos_token", eos, default=False),
            # The others never add a space.
            add_space_prefix=self._flag("add_space_prefix", default=True) and is_llama,
            strips_right=self._is_phi3(),
            chat_template=self._string("tokenizer.chat_template") or None,
        )

    def _error(self, message: str) -> TokenizerError:
        return TokenizerError(f"{self._source}: {message}")

    def _string(self, key: str) -> str | None:
        value = self._metadata.get(key)
        if value is not None and not isinstance(value, str):
            raise self._error(f"{key} is {_kind(value)}; a string is needed")
        return value

    def _model(self) -> str:
        model = self._string(f"{_PREFIX}model")
        if model is None:
            raise self._error(f"{_PREFIX}model is missing: the file has no vocabulary")
        if model not in SUPPORTED_MODELS:
            raise UnsupportedError(
                f"{self._source}: vocabulary of kind {model!r} is not supported. Supported: "
                "llama (SentencePiece BPE), gpt2 (byte-level BPE), gemma4 (BPE on characters)."
            )
        return model

    def _texts(self) -> list[str]:
        tokens = self._strings("tokens")
        if not tokens:
            raise self._error(f"{_PREFIX}tokens is empty; a vocabulary has at least one token")
        # An empty text would match everywhere; the stand-in is that of llama.cpp.
        return [text or f"[EMPTY_{token_id}]" for token_id, text in enumerate(tokens)]

    def _strings(self, name: str) -> list[str]:
        value = self._metadata.get(_PREFIX + name)
        if value is None:
            raise self._error(f"{_PREFIX}{name} is missing")
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise self._error(f"{_PREFIX}{name} is {_kind(value)}; an array of strings is needed")
        return list(value)

    def _numbers(self, name: str, count: int) -> npt.NDArray[np.generic] | None:
        value = self._metadata.get(_PREFIX + name)
        if value is None:
            return None
        if not isinstance(value, np.ndarray | list | tuple) or any(
            isinstance(item, str) for item in value[:1]
        ):
            raise self._error(f"{_PREFIX}{name} is {_kind(value)}; an array of numbers is needed")
        try:
            array = np.asarray(value)
        except ValueError:
            raise self._error(f"{_PREFIX}{name} holds arrays of unequal lengths") from None
        if array.ndim != 1 or array.dtype.kind not in "iuf":
            raise self._error(f"{_PREFIX}{name} is not a flat array of numbers")
        if len(array) != count:
            raise self._error(
                f"{_PREFIX}{name} has {len(array)} elements; there are {count} tokens"
            )
        return array

    def _types(self, texts: Sequence[str], model: str) -> list[TokenType]:
        array = self._numbers("token_type", len(texts))
        if array is None:
            is_byte = byte_value if model != BYTE_LEVEL else lambda _: None
            return [TokenType.NORMAL if is_byte(t) is None else TokenType.BYTE for t in texts]
        known = {int(member): member for member in TokenType}
        try:
            return [known[value] for value in array.tolist()]
        except KeyError as error:
            raise self._error(
                f"{_PREFIX}token_type has the value {error.args[0]}; 0 to {max(known)} are known"
            ) from None

    def _scores(self, count: int) -> tuple[float, ...]:
        array = self._numbers("scores", count)
        if array is None:
            return (0.0,) * count
        # Scores order the merges; they are stored as f32 and compared as such.
        with np.errstate(over="ignore"):
            scores = array.astype(np.float32)
        if not np.isfinite(scores).all():
            raise self._error(f"{_PREFIX}scores has values that are not finite")
        return tuple(scores.tolist())

    def _merges(self) -> tuple[tuple[str, str], ...]:
        # The first of repeated merges counts, as in llama.cpp.
        pairs = [tuple(line.split(" ", 1)) for line in dict.fromkeys(self._strings("merges"))]
        return tuple([(pair[0], pair[1]) for pair in pairs if len(pair) == 2 and all(pair)])

    def _special_ids(
        self, model: str, texts: Sequence[str], types: Sequence[TokenType]
    ) -> tuple[int | None, int | None, int | None]:
        if model == SENTENCEPIECE:
            defaults = {k: v for k, v in _SENTENCEPIECE_DEFAULTS.items() if v < len(texts)}
        elif (
            model == BYTE_LEVEL
            and len(texts) > _BYTE_LEVEL_DEFAULT_END
            and types[_BYTE_LEVEL_DEFAULT_END] is TokenType.CONTROL
        ):
            defaults = {"bos": _BYTE_LEVEL_DEFAULT_END, "eos": _BYTE_LEVEL_DEFAULT_END}
        else:
            defaults = {}
        bos, eos, unknown = (
            self._token_id(f"{name}_token_id", len(texts), defaults.get(name))
            for name in ("bos", "eos", "unknown")
        )
        return bos, eos, unknown

    def _token_id(self, name: str, count: int, default: int | None = None) -> int | None:
        value = self._metadata.get(_PREFIX + name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise self._error(f"{_PREFIX}{name} is {_kind(value)}; a token id is needed")
        if not 0 <= value < count:
            # Converters write -1 for "none"; llama.cpp warns and continues too.
            _log.warning(
                "%s: %s%s is %d, but the vocabulary has the ids 0 to %d; ignored",
                self._source,
                _PREFIX,
                name,
                value,
                count - 1,
            )
            return default
        return int(value)

    def _flag(self, name: str, *, default: bool) -> bool:
        value = self._metadata.get(_PREFIX + name)
        if value is None:
            return default
        if not isinstance(value, bool | np.bool_):
            raise self._error(f"{_PREFIX}{name} is {_kind(value)}; true or false is needed")
        return bool(value)

    def _adds(self, name: str, token_id: int | None, *, default: bool) -> bool:
        wanted = self._flag(name, default=default)
        if wanted and token_id is None:
            _log.warning("%s: %s%s is set, but there is no such token", self._source, _PREFIX, name)
        return wanted and token_id is not None

    def _is_phi3(self) -> bool:
        # GGUF has no key for AddedToken.rstrip; llama.cpp checks the name as well.
        name = str(self._metadata.get("general.name", "")).lower()
        return "phi-3" in name or "phi3" in name


def byte_value(text: str) -> int | None:
    """Return the byte of a SentencePiece text such as ``<0x0A>``; None for any other text."""
    match = _BYTE_TEXT.fullmatch(text)
    return int(match[1], 16) if match else None


def _kind(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    if isinstance(value, list | tuple):
        kinds: Iterable[str] = sorted({type(item).__name__ for item in value})
        return f"an array of {' and '.join(kinds) or 'nothing'}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return f"{type(value).__name__} {value!r:.40}"
