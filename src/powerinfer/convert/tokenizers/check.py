"""Check that a file's tokenizer encodes text like its checkpoint's own.

The checkpoint's tokenizer is run by the `tokenizers` library from ``tokenizer.json``, or by
`sentencepiece` from ``tokenizer.model``. Texts that would show behavior GGUF has no key for are
left out:

- if it normalizes to NFC, texts are in NFC;
- if added tokens swallow white space, there is none around them;
- if it does not prepend a space to text that starts with one or follows a special token, there is
  no such text.
"""

import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import sentencepiece
import tokenizers

from powerinfer._program_end import library_call
from powerinfer.convert.tokenizers.added_tokens import added_tokens
from powerinfer.convert.tokenizers.byte_fallback import Spaces, spaces_of
from powerinfer.convert.tokenizers.check_texts import (
    ODD_STRINGS,
    bundled_texts,
    strings_with_tokens,
    vocabulary_text,
)
from powerinfer.convert.tokenizers.files import read_bytes
from powerinfer.convert.tokenizers.outside_errors import library_errors
from powerinfer.convert.tokenizers.pre_tokenizer import cuts_bytes
from powerinfer.convert.tokenizers.sentencepiece_model import SentencePieceModel
from powerinfer.convert.tokenizers.source import find_source
from powerinfer.convert.tokenizers.tokenizer_json import TokenizerJson, entries_of
from powerinfer.errors import TokenizerError
from powerinfer.tokenizer import Tokenizer
from powerinfer.tokenizer.vocabulary import TokenType, Vocabulary, load_vocabulary

__all__ = ["check_tokenizer"]

_Encode = Callable[[str], Sequence[int]]
_SHOWN_IDS = 8
_SHOWN_CHARACTERS = 60


def check_tokenizer(folder: Path, metadata: Mapping[str, object]) -> None:
    """Compare the tokenizer of `metadata` with the one of a checkpoint.

    Raises:
        TokenizerError: they encode a text differently; the message shows it and both lists of ids.
        UnsupportedError: the kind of tokenizer is not supported.
    """
    source = find_source(folder)
    ours = Tokenizer.from_metadata(metadata, source=str(folder))
    vocabulary = load_vocabulary(metadata, source=str(folder))
    if isinstance(source, SentencePieceModel):
        _compare(
            _texts_of_model(source, folder, vocabulary),
            _library_model(source),
            lambda text: ours.encode(text, add_bos=False),
            source.path,
        )
    else:
        library = _library_tokenizer(source)
        _compare(
            _texts_of_json(source, vocabulary),
            lambda text: library.encode(text, add_special_tokens=False).ids,
            lambda text: ours.encode(text, add_bos=False, parse_special=True),
            source.path,
        )
        if source.content.get("post_processor") is not None and not _asks_for_more(ours, library):
            _compare(
                ["Hello"],
                lambda text: library.encode(text).ids,
                lambda text: ours.encode(text, add_eos=ours.add_eos),
                source.path,
            )


def _asks_for_more(ours: Tokenizer, library: tokenizers.Tokenizer) -> bool:
    """Return whether BOS is added only because the configuration requests it."""
    return ours.add_bos and library.encode("").ids[:1] != [ours.bos_id]


def _library_model(source: SentencePieceModel) -> _Encode:
    processor = sentencepiece.SentencePieceProcessor()
    try:
        with library_call():
            processor.LoadFromSerializedProto(read_bytes(source.path) + source.prefix_switch)
    except (RuntimeError, OSError, ValueError) as error:
        raise TokenizerError(f"{source.path}: sentencepiece rejects it: {error}") from None
    return processor.EncodeAsIds


def _library_tokenizer(source: TokenizerJson) -> tokenizers.Tokenizer:
    with library_errors(f"{source.path}: the tokenizers library rejects it", TokenizerError):
        return tokenizers.Tokenizer.from_str(json.dumps(source.for_library()))


def _texts_of_model(
    source: SentencePieceModel, folder: Path, vocabulary: Vocabulary
) -> Iterator[str]:
    """Texts without tokens added later, which the library does not know."""
    base = {piece.text: token_id for token_id, piece in enumerate(source.pieces)}
    added = [token.text for token in added_tokens(folder, {}, base).values() if not token.special]
    for text in (*ODD_STRINGS, *bundled_texts(), *vocabulary_text(vocabulary)):
        if not any(each in text for each in added):
            yield text


def _texts_of_json(source: TokenizerJson, vocabulary: Vocabulary) -> Iterator[str]:
    """Plain texts and texts with special tokens that avoid differences GGUF has no key for."""
    spaces = _spaces(source)
    steps = entries_of(source.content.get("normalizer"), source.path, "normalizers")
    is_nfc = any(step.get("type") == "NFC" for step in steps)
    only_at_end = spaces.is_first_only or spaces.unless_there
    simple, awkward = _found_alike(source, vocabulary, spaces)
    special = {token.text for token in source.added.values() if token.special}
    left_out = awkward | special if only_at_end else awkward
    for text in (*ODD_STRINGS, *bundled_texts(), *vocabulary_text(vocabulary)):
        starts_with_space = text[:1] in (" ", "\u2581")
        if not (spaces.unless_there and starts_with_space) and not any(
            each in text for each in left_out
        ):
            yield unicodedata.normalize("NFC", text) if is_nfc else text
    for text in strings_with_tokens(simple, only_at_end=only_at_end):
        yield unicodedata.normalize("NFC", text) if is_nfc else text


def _found_alike(
    source: TokenizerJson, vocabulary: Vocabulary, spaces: Spaces
) -> tuple[list[str], set[str]]:
    """Token texts that both tokenizers match alike, and those that only one does.

    The latter swallow white space, match between words only or in text that already starts with a
    space, have no row, or are end tokens we recognize by their text though they are not added
    tokens.
    """
    simple: list[str] = []
    awkward: set[str] = set()
    for token_id, token in sorted(source.added.items()):
        flags = token.lstrip or token.rstrip or token.single_word
        if flags or (token.normalized and spaces.add_prefix) or token_id >= len(vocabulary):
            awkward.add(token.text)
        else:
            simple.append(token.text)
    ours = {
        text
        for text, token_type in zip(vocabulary.texts, vocabulary.types, strict=True)
        if token_type in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
    }
    return simple, awkward | ours - {*simple}


def _spaces(source: TokenizerJson) -> Spaces:
    stages = entries_of(source.content.get("pre_tokenizer"), source.path, "pretokenizers")
    return Spaces(add_prefix=False) if cuts_bytes(stages) else spaces_of(source)


def _compare(texts: Iterable[str], own: _Encode, ours: _Encode, path: Path) -> None:
    for text in texts:
        problem = f"{path}: the checkpoint's tokenizer fails on {_shown(text)}"
        with library_errors(problem, TokenizerError):
            wanted, found = list(own(text)), list(ours(text))
        if wanted != found:
            raise TokenizerError(_difference(text, wanted, found, path))


def _difference(text: str, wanted: list[int], found: list[int], path: Path) -> str:
    pairs = zip(wanted, found, strict=False)
    same = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(wanted), len(found)))
    where = f" from token {same} on" if same else ""
    return (
        f"{path}: the tokenizer that the file would get encodes {_shown(text)} unlike the "
        f"checkpoint's{where}: {_shown_ids(found, same)}, not {_shown_ids(wanted, same)}"
    )


def _shown(text: str) -> str:
    return ascii(text) if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]!a}..."


def _shown_ids(ids: list[int], start: int) -> str:
    shown = ", ".join(map(str, ids[start : start + _SHOWN_IDS]))
    more = len(ids) - start - _SHOWN_IDS
    return f"[{shown}{f', ... {more} more' if more > 0 else ''}]"
