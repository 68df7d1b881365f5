"""Checkpoints of Hugging Face: a folder with a `config.json` and tensors in one or more files.

Files are untrusted; code of a checkpoint is never run.
"""

from powerinfer.convert.checkpoint.checkpoint import Checkpoint, open_checkpoint
from powerinfer.convert.checkpoint.tensor import CheckpointTensor

__all__ = ["Checkpoint", "CheckpointTensor", "open_checkpoint"]
