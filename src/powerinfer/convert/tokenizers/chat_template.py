"""Chat templates of checkpoints."""

import logging
from pathlib import Path

from powerinfer.convert.tokenizers.files import check_unicode, optional_object, read_text
from powerinfer.errors import TokenizerError

__all__ = ["read_chat_template"]

_log = logging.getLogger(__name__)


def read_chat_template(folder: Path) -> str | None:
    """Read the chat template; of several, the one named ``default``.

    ``chat_template.jinja`` takes precedence over ``tokenizer_config.json``, and that over
    ``chat_template.json``.
    """
    alone = folder / "chat_template.jinja"
    if alone.exists():
        return read_text(alone)
    for name in ("tokenizer_config.json", "chat_template.json"):
        path = folder / name
        value = optional_object(path).get("chat_template")
        if value is not None:
            return _default_of(value, path)
    return None


def _default_of(value: object, path: Path) -> str | None:
    """Select the template: a string, or the ``default`` of a list or mapping."""
    if isinstance(value, list):
        value = {
            str(item.get("name")): item.get("template") for item in value if isinstance(item, dict)
        }
    if isinstance(value, dict):
        if "default" not in value:
            names = ", ".join(sorted(value))[:80]
            _log.warning("%s: none of the chat templates (%s) is named default", path, names)
            return None
        value = value["default"]
    if not isinstance(value, str):
        raise TokenizerError(f"{path}: chat_template is {value!r:.60}; expected a string")
    check_unicode(value, path, "chat_template")
    return value
