"""Ids of special tokens, and whether prompts get BOS and EOS."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from powerinfer.convert.tokenizers.added_tokens import named_tokens
from powerinfer.convert.tokenizers.files import optional_object
from powerinfer.convert.tokenizers.tokenizer_json import TokenizerJson, entries_of
from powerinfer.errors import TokenizerError, UnsupportedError
from powerinfer.gguf import keys
from powerinfer.tokenizer.vocabulary import load_vocabulary

__all__ = ["Around", "around_text", "special_id_metadata"]

_log = logging.getLogger(__name__)

_KEYS = {
    "bos": keys.BOS_TOKEN_ID,
    "eos": keys.EOS_TOKEN_ID,
    "unk": keys.UNKNOWN_TOKEN_ID,
    "sep": keys.SEPARATOR_TOKEN_ID,
    "pad": keys.PADDING_TOKEN_ID,
}
_FURTHER_ENDS = (keys.EOT_TOKEN_ID, keys.EOM_TOKEN_ID)


@dataclass(frozen=True)
class Around:
    """Ids that a post-processor puts around a text; `is_set` if there is one."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    is_set: bool = False


def around_text(source: TokenizerJson) -> Around:
    """Read the post-processor of a ``tokenizer.json``."""
    value = source.content.get("post_processor")
    around = Around(is_set=value is not None)
    for step in entries_of(value, source.path, "processors"):
        if step.get("type") == "TemplateProcessing":
            around = _template(step, source)
        elif step.get("type") in ("RobertaProcessing", "BertProcessing"):
            first, last = (_id_of_pair(step.get(name), source) for name in ("cls", "sep"))
            around = Around((first,), (last,), is_set=True)
    if len(around.before) > 1 or len(around.after) > 1:
        raise UnsupportedError(
            f"{source.path}: the post-processor puts {len(around.before)} tokens before a "
            f"text and {len(around.after)} after it; GGUF files support one each"
        )
    return around


def special_id_metadata(
    folder: Path,
    metadata: Mapping[str, object],
    *,
    defaults: Mapping[str, int],
    around: Around,
    adds_bos: bool,
) -> dict[str, object]:
    """Keys of special ids, of all end tokens, and of BOS and EOS in prompts.

    Args:
        defaults: ids by name (``bos`` ...) from the tokenizer's own file.
        around: tokens added by its post-processor.
        adds_bos: default for prompts starting with BOS.
    """
    texts = metadata[keys.TOKENS]
    if not isinstance(texts, list):
        raise TokenizerError(f"{folder}: no tokens")
    ids = {text: token_id for token_id, text in enumerate(texts)}
    named = {kind: ids[text] for kind, text in named_tokens(folder).items() if text in ids}
    if around.before:
        named["bos"] = around.before[0]
    generation, config = (
        optional_object(folder / f"{n}.json") for n in ("generation_config", "config")
    )
    inner = config.get("text_config")
    found: dict[str, object] = {}
    for kind, key in _KEYS.items():
        listed = [
            each
            for source in (generation, config, inner if isinstance(inner, dict) else {})
            for each in _ids(source.get(f"{kind}_token_id"), len(texts))
        ]
        own = named.get(kind, defaults.get(kind))
        candidates = listed if own is None else [own, *listed]
        if candidates:
            found[key] = candidates[0]
        if kind == "eos":
            found |= _further_ends({**metadata, **found}, dict.fromkeys(candidates), folder)
    found |= _added_around(folder, around, adds_bos=adds_bos)
    return found


def _ids(value: object, count: int) -> Iterator[int]:
    """Ids of a key with one id or a list; -1 and the like mean none."""
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, int) and not isinstance(each, bool) and 0 <= each < count:
            yield each


def _further_ends(
    metadata: Mapping[str, object], wanted: Mapping[int, None], folder: Path
) -> dict[str, object]:
    """Keys for end tokens that are not recognized by their text (`tokenizer.token_types`)."""
    known = load_vocabulary(metadata, source=str(folder)).eog_ids
    missing = [token_id for token_id in wanted if token_id not in known]
    if len(missing) > len(_FURTHER_ENDS):
        _log.warning(
            "%s: %d tokens end an answer; a GGUF file can name %d besides the first: dropped %s",
            *(folder, len(wanted), len(_FURTHER_ENDS), missing[len(_FURTHER_ENDS) :]),
        )
    return dict(zip(_FURTHER_ENDS, missing, strict=False))


def _added_around(folder: Path, around: Around, *, adds_bos: bool) -> dict[str, object]:
    """Decide if BOS and EOS are added.

    As in transformers 5 a post-processor decides, if there is one. A configuration that requests
    BOS also counts if the post-processor adds nothing: OPT was saved like that.
    """
    config = optional_object(folder / "tokenizer_config.json")
    bos, eos = config.get("add_bos_token"), config.get("add_eos_token")
    if around.is_set:
        return {
            keys.ADD_BOS_TOKEN: bool(around.before) or bos is True,
            keys.ADD_EOS_TOKEN: bool(around.after),
        }
    return {
        keys.ADD_BOS_TOKEN: bos if isinstance(bos, bool) else adds_bos,
        keys.ADD_EOS_TOKEN: eos is True,
    }


def _template(step: Mapping[str, object], source: TokenizerJson) -> Around:
    single, known = step.get("single"), step.get("special_tokens")
    if not isinstance(single, list) or not isinstance(known, dict):
        raise TokenizerError(f"{source.path}: post_processor is malformed: {step!r:.80}")
    before: list[int] = []
    after: list[int] = []
    side = before
    for part in single:
        special = part.get("SpecialToken") if isinstance(part, dict) else None
        if isinstance(special, dict):
            entry = known.get(str(special.get("id")))
            ids = entry.get("ids") if isinstance(entry, dict) else None
            if not isinstance(ids, list):
                raise TokenizerError(f"{source.path}: post_processor names {special!r:.60}")
            side += [_checked_id(each, source) for each in ids]
        else:
            side = after
    return Around(tuple(before), tuple(after), is_set=True)


def _id_of_pair(value: object, source: TokenizerJson) -> int:
    if not isinstance(value, list) or len(value) != 2:
        raise TokenizerError(f"{source.path}: post_processor names {value!r:.60}")
    return _checked_id(value[1], source)


def _checked_id(value: object, source: TokenizerJson) -> int:
    known = isinstance(value, int) and (value in source.added or value in source.vocab.values())
    if isinstance(value, bool) or not isinstance(value, int) or not known:
        raise TokenizerError(f"{source.path}: post_processor names the id {value!r:.40}")
    return value
