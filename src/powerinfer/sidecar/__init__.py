"""Files next to a model: one class for all kinds, and a strict reader of their JSON."""

from powerinfer.sidecar.fields import Field
from powerinfer.sidecar.sidecar import Sidecar

__all__ = ["Field", "Sidecar"]
