"""Sliding windows of a checkpoint's layers."""

from powerinfer.models.checkpoints.config import CheckpointConfig

__all__ = ["all_layers", "by_layer_types", "if_used"]

_KINDS = {"sliding_attention": True, "full_attention": False}


def all_layers(config: CheckpointConfig) -> list[bool] | None:
    """All layers have the window, if there is one (Mistral)."""
    has_window = config.has("sliding_window")
    return [True] * config.integer("num_hidden_layers") if has_window else None


def by_layer_types(config: CheckpointConfig, period: int) -> list[bool]:
    """The layers named by `layer_types` have it; else all but the last of each `period`.

    Raises:
        UnsupportedError: unknown layer type.
    """
    count = config.integer("num_hidden_layers")
    kinds = config.items("layer_types", str, count)
    if kinds:
        if any(kind not in _KINDS for kind in kinds):
            raise config.unsupported("layer_types", ", ".join(_KINDS))
        return [_KINDS[str(kind)] for kind in kinds]
    return [(number + 1) % period != 0 for number in range(count)]


def if_used(config: CheckpointConfig) -> list[bool] | None:
    """The layers from `max_window_layers` on have it, if `use_sliding_window` is set (Qwen)."""
    if not config.flag("use_sliding_window", default=False) or not config.has("sliding_window"):
        return None
    count = config.integer("num_hidden_layers")
    if config.has("layer_types"):
        return by_layer_types(config, count + 1)
    first = config.number("max_window_layers", 0)
    return [number >= first for number in range(count)]
