"""jax's own: psum under shard_map and jit, as its documentation has it, over Gloo on CPUs."""

from __future__ import annotations

from tools.benchmarks.stacks.loop import Call, Opened, Place, main


def ready(place: Place) -> Call:
    """A psum of ones, on what is open; the buffer stays where it is."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh, parts = Mesh(np.array(jax.devices()), ("ranks",)), PartitionSpec("ranks")
    whole = jax.make_array_from_process_local_data(NamedSharding(mesh, parts), np.ones(place.count, np.float32))
    psum = jax.jit(jax.shard_map(lambda mine: jax.lax.psum(mine, "ranks"), mesh=mesh, in_specs=parts, out_specs=parts, check_vma=False))
    return lambda: psum(whole).block_until_ready()


def open_stack(place: Place) -> Opened:
    """CPUs, and Gloo between them."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(place.addresses[0], place.ranks, place.rank)
    return ready(place), jax.distributed.shutdown


if __name__ == "__main__":
    main(open_stack)
