"""Which neuron lies in which slot of a layer's device memory: the host's copy of the tables.

Nothing here needs torch: placing a model asks for sizes.
"""

import numpy as np

from powerinfer.values import IntArray

__all__ = ["SlotTable", "chunk_neurons"]

# Chunks of neurons that are columns of a file's matrix begin at whole blocks of any format.
_CHUNK_ALIGNMENT = 256


def chunk_neurons(neuron_bytes: int, num_neurons: int, chunk_bytes: int) -> int:
    """How many cold neurons are sent at a time while a prompt is computed.

    Args:
        neuron_bytes: of the rows of one on the device.
        num_neurons: of the layer.
        chunk_bytes: that a chunk shall have about; it holds 256 neurons at least.
    """
    wanted = chunk_bytes // max(1, neuron_bytes) // _CHUNK_ALIGNMENT
    return min(max(1, wanted) * _CHUNK_ALIGNMENT, num_neurons)


class SlotTable:
    """Slots of one layer, some of them free.

    Attributes:
        neuron_of_slot: i32[slots], -1 for a free one.
        slot_of_neuron: i32[neurons], -1 for a neuron that is not on the device.
    """

    def __init__(self, hot: IntArray, num_neurons: int, num_slots: int) -> None:
        """Put neurons into the first slots, in their order.

        Args:
            hot: i32[k], their ids.
            num_neurons: of the layer.
            num_slots: k or more.
        """
        self.neuron_of_slot = np.full(num_slots, -1, np.int32)
        self.neuron_of_slot[: len(hot)] = hot
        self.slot_of_neuron = np.full(num_neurons, -1, np.int32)
        self.slot_of_neuron[hot] = np.arange(len(hot), dtype=np.int32)

    @property
    def cold(self) -> IntArray:
        """i32[...], ids of the neurons that are not on the device, ascending."""
        ids: IntArray = np.flatnonzero(self.slot_of_neuron < 0).astype(np.int32)
        return ids

    @property
    def hot(self) -> IntArray:
        """i32[...], ids of those that are, ascending."""
        ids: IntArray = np.flatnonzero(self.slot_of_neuron >= 0).astype(np.int32)
        return ids

    @property
    def free(self) -> IntArray:
        """i32[...], slots that hold no neuron, ascending."""
        slots: IntArray = np.flatnonzero(self.neuron_of_slot < 0).astype(np.int32)
        return slots

    @property
    def is_full(self) -> bool:
        """Whether every neuron of the layer is on the device."""
        return bool((self.slot_of_neuron >= 0).all())

    def replace(self, evicted: IntArray, loaded: IntArray, slots: IntArray) -> None:
        """Let neurons go and others, whose weights lie in free slots by now, come.

        Args:
            evicted: i32[n], ids of neurons that are on the device.
            loaded: i32[n], ids of neurons that are not.
            slots: i32[n], free slots, one for each that is loaded.
        """
        self.neuron_of_slot[self.slot_of_neuron[evicted]] = -1
        self.slot_of_neuron[evicted] = -1
        self.neuron_of_slot[slots] = loaded
        self.slot_of_neuron[loaded] = slots
