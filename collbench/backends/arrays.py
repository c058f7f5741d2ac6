"""jax's arrays beside the buffers in the host's memory: what is sent is copied there when it is written, what arrived when it is checked.

Arrays of jax cannot be written: every call makes a new one. Both copies happen outside of what is timed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from collbench.backends.group import Group
from collbench.backends.memory import Buffers, Elements
from collbench.operations.cell import Cell
from collbench.operations.data import Mismatch
from collbench.operations.operation import Operation

AXIS = "ranks"


class JaxBuffers(Buffers):
    """Buffers of one rank.

    inputs, results   its arrays per slot; a result is None until a call has made it
    compiled, wire    the function that runs over them, once it is compiled, and the type in which XLA then carries them ("f32")
    """

    def __init__(self, jax: Any, operation: Operation, cell: Cell, group: Group, slots: int) -> None:
        """Raises MemoryError."""
        super().__init__(operation, cell, group, slots)
        self._jax, self._n = jax, group.n
        (self._device,) = group.handle.local_devices
        self._sharding = jax.sharding.NamedSharding(group.handle, jax.sharding.PartitionSpec(AXIS))
        self.compiled: Any = None
        self.wire = ""
        self.results: list[Any] = [None] * slots
        self.inputs: list[Any] = [self._array(self.send(0, slot)) for slot in range(slots)]

    def fill(self, slot: int, for_check: bool) -> None:
        """Writes the inputs, and copies them to jax. Raises MemoryError."""
        super().fill(slot, for_check)
        self.inputs[slot] = self._array(self.send(0, slot))
        self.results[slot] = None

    def check(self, slot: int) -> list[Mismatch | None]:
        """What is wrong with the result of the last call; one that was never made leaves the poison there."""
        if self.results[slot] is not None:
            (shard,) = self.results[slot].addressable_shards
            self.recv(0, slot)[:] = np.asarray(shard.data)
        return super().check(slot)

    def _array(self, elements: Elements) -> Any:
        """An array over all ranks of the group of which these elements are this rank's part; a copy, however they are aligned."""
        try:
            part = self._jax.device_put(elements, self._device, may_alias=False).block_until_ready()
        except RuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise MemoryError(f"jax allocates no {elements.nbytes} bytes: {str(error).splitlines()[0]}") from error
        shape = (self._n * len(elements),)
        return self._jax.make_array_from_single_device_arrays(shape, self._sharding, [part])
