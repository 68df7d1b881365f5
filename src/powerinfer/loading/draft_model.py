"""Opening a draft model: is it one for this model, and how is it loaded?"""

from itertools import zip_longest

from powerinfer.errors import UnsupportedError
from powerinfer.models import ModelFile, default_context
from powerinfer.options.option_kinds import DRAFT_OFF
from powerinfer.options.options import CPU, EngineOptions
from powerinfer.store.default_model import find_model
from powerinfer.tokenizer.vocabulary import TokenType, load_vocabulary

__all__ = ["open_draft_model"]


def open_draft_model(opened: ModelFile, options: EngineOptions) -> tuple[ModelFile, EngineOptions]:
    """Open the draft model that the options of a model name.

    Returns:
        The file, and the options to load it with.

    Raises:
        GGUFError: the file is missing or malformed.
        TokenizerError: one of the vocabularies cannot be used.
        UnsupportedError: it has another vocabulary or recurrent layers, or cannot be run.
    """
    named = ModelFile.open(find_model(options.draft_model))
    _check_vocabulary(opened, named)
    if named.config.state_mixers:
        raise UnsupportedError(
            f"{named.file.path}: {named.architecture.name} has recurrent layers, whose state "
            "cannot go back after a wrong guess",
            remedy="name a {draft_model} of attention layers alone",
        )
    context_length = options.context_length or default_context(opened.config)
    return named, EngineOptions(
        device=CPU,
        draft=DRAFT_OFF,
        context_length=min(context_length, named.config.context_length),
        threads=options.threads,
        kernels=options.kernels,
        kv_type=options.kv_type,
        kv_tokens=options.kv_tokens,
        parallel=options.parallel,
        mmap=options.mmap,
    )


def _check_vocabulary(opened: ModelFile, named: ModelFile) -> None:
    """Raise UnsupportedError if a token id does not mean the same to both.

    A vocabulary may be longer by ids that mean nothing.
    """
    ours, theirs = (
        load_vocabulary(each.file.metadata, source=str(each.file.path)) for each in (opened, named)
    )
    longer = max(ours, theirs, key=len)
    for token_id, (own, other) in enumerate(zip_longest(ours.texts, theirs.texts)):
        is_padding = None in (own, other) and longer.types[token_id] == TokenType.UNUSED
        if own != other and not is_padding:
            raise UnsupportedError(
                f"{named.file.path} has another vocabulary than {opened.file.path}: token "
                f"{token_id} is {_shown(other)} there, {_shown(own)} here",
                remedy="name a {draft_model} with the same vocabulary, such as a smaller model of "
                "the same family",
            )


def _shown(text: str | None) -> str:
    return "missing" if text is None else f"{text!r:.40}"
