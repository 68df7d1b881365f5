"""A Llama- or Mistral-shaped model of transformers whose FFN activation can be exchanged."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from powerinfer._extras import how_to_install
from powerinfer.errors import CheckpointError, DeviceError, UnsupportedError
from powerinfer.models.checkpoints.config import CheckpointConfig
from powerinfer.train.checkpoint import first_line
from powerinfer.train.sparsify.attention import ATTENTION, register_attention
from powerinfer.train.sparsify.ffn import (
    ACTIVATIONS,
    ActivationName,
    GatedFFN,
    NeuronObserver,
)
from powerinfer.train.sparsify.source import Source, as_source, read_source

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

__all__ = ["SparseModel", "load_model", "quiet_transformers", "random_model", "set_activation"]


@dataclass(eq=False)
class SparseModel:
    """A model to train.

    Attributes:
        network: transformers' `LlamaForCausalLM` or `MistralForCausalLM`, weights in f32, its FFNs
            replaced by `GatedFFN`.
        dtype: type of the checkpoint's weights, in which they are saved, too.
    """

    network: "PreTrainedModel"
    source: Source
    dtype: torch.dtype

    @property
    def ffns(self) -> list[GatedFFN]:
        """The FFNs of all layers in their order."""
        return [layer.mlp for layer in self.network.model.layers]

    @property
    def activation(self) -> ActivationName:
        """The activation of the FFNs: `silu`, `relu` or `drelu`."""
        return self.ffns[0].activation

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        device: torch.device = self.network.device
        return device

    def logits(self, token_ids: Tensor) -> Tensor:
        """Logits [batch, seq_len, vocab_size] of token_ids i64[batch, seq_len]."""
        found: Tensor = self.network(input_ids=token_ids, use_cache=False).logits
        return found

    @contextmanager
    def watched(self, observer: NeuronObserver | None) -> Iterator[None]:
        """Show the neurons of every FFN to an observer, for a while."""
        for ffn in self.ffns:
            ffn.observer = observer
        try:
            yield
        finally:
            for ffn in self.ffns:
                ffn.observer = None


def load_model(folder: Path, device: str | torch.device = "cpu") -> SparseModel:
    """Load a Llama, Mistral or bamboo checkpoint with its weights in f32."""
    source = read_source(folder)
    classes = _classes(source.kind)
    try:
        config = classes[0](**source.arguments)
        network, report = classes[1].from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            attn_implementation=ATTENTION,
            local_files_only=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except Exception as error:  # noqa: BLE001 - a damaged checkpoint may raise anything
        raise CheckpointError(f"{folder}: cannot be loaded: {first_line(error):.200}") from None
    _check_tensors(folder, report)
    return _sparse_model(network, source, device)


def random_model(
    config: Mapping[str, object], seed: int, device: str | torch.device = "cpu"
) -> SparseModel:
    """Make a model with random weights from values of a `config.json`, to train from scratch."""
    source = as_source(CheckpointConfig("the configuration", config))
    classes = _classes(source.kind)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        values = classes[0](**source.arguments)
        network = classes[1]._from_config(values, attn_implementation=ATTENTION)
    return _sparse_model(network, source, device)


def set_activation(model: SparseModel, name: ActivationName) -> None:
    """Replace the activation of every FFN: `silu`, `relu` or `drelu`."""
    if name not in ACTIVATIONS:
        raise UnsupportedError(f"activation {name}; known are {', '.join(ACTIVATIONS)}")
    for ffn in model.ffns:
        ffn.activation = name


def quiet_transformers() -> ModuleType:
    """Import transformers, which then prints nothing."""
    try:
        import transformers
    except ImportError:
        raise DeviceError(
            f"sparsify needs transformers, which is not installed; {how_to_install('train')}"
        ) from None
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    found: ModuleType = transformers
    return found


def _classes(kind: str) -> "tuple[type[PretrainedConfig], type[PreTrainedModel]]":
    """Transformers' configuration and model."""
    transformers = quiet_transformers()
    register_attention()
    return getattr(transformers, f"{kind}Config"), getattr(transformers, f"{kind}ForCausalLM")


def _sparse_model(
    network: "PreTrainedModel", source: Source, device: str | torch.device
) -> SparseModel:
    for number, layer in enumerate(network.model.layers):
        own = layer.mlp
        projections = (own.gate_proj, own.up_proj, own.down_proj)
        layer.mlp = GatedFFN(projections, number, source.activation)
    network.to(device)
    network.eval()
    name = source.values.get("dtype", source.values.get("torch_dtype"))
    known = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
    return SparseModel(network, source, known.get(str(name), torch.float32))


def _check_tensors(folder: Path, report: Mapping[str, Collection[object] | None]) -> None:
    """Refuse what transformers would fill with random numbers, or leave out."""
    for key, problem in (
        ("missing_keys", "is missing"),
        ("mismatched_keys", "has another shape than config.json says"),
    ):
        for name in sorted(map(str, report.get(key) or ())):
            raise CheckpointError(f"{folder}: tensor {name} {problem}")
    for name in sorted(map(str, report.get("unexpected_keys") or ())):
        raise UnsupportedError(
            f"{folder}: tensor {name} is none of a Llama or Mistral model without biases and "
            "experts"
        )
