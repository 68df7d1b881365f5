"""Files beside a model: one class for all kinds of them, one strict reader of their JSON."""

from powerinfer.sidecar.fields import Field
from powerinfer.sidecar.sidecar import Sidecar

__all__ = ["Field", "Sidecar"]
