"""Microbatches of a model with fewer sequences than devices, for a batch that does not fit in memory otherwise."""

import math
from collections.abc import Callable

from shardwise.errors import AutoshardError
from shardwise.launch.preset_target import Batch, preset_step
from shardwise.layout_search.evaluate import Alternative
from shardwise.layout_search.result import AutoSharding
from shardwise.tree_util import tree_leaves

_ESTIMATED = 0.9  # the fraction of the memory that microbatches may need by the estimate, so that they probably fit


def search_smaller_microbatches(
    name: str,
    batch: Batch,
    search: Callable[..., Callable[..., AutoSharding]],
    error: AutoshardError,
    memory: float,
) -> tuple[Batch, AutoSharding]:
    """Return the best plan for the fewest further microbatches that fit in memory by an estimate.

    Args:
        name: the name of the model.
        batch: the batch that does not fit.
        search: `autoshard`, with the devices.
        error: the error of the batch.
        memory: the bytes that each device may hold.

    Raises:
        AutoshardError: the given one, if none fits.
    """
    least = error.least
    assert isinstance(least, Alternative)
    state, _ = preset_step(name, batch)[1]
    state_bytes, gradient_bytes = (_nbytes(tree) / least.mesh.size for tree in (state, state["weights"]))
    activation_bytes = least.peak_bytes - state_bytes - gradient_bytes
    for smaller in batch.in_smaller_microbatches():
        # The gradients of a microbatch are held with the sum of those before.
        needed = state_bytes + 2 * gradient_bytes + activation_bytes * batch.microbatches / smaller.microbatches
        if needed <= _ESTIMATED * memory:
            step, args = preset_step(name, smaller)
            try:
                return smaller, search(step)(*args)
            except AutoshardError:
                break
    raise error


def _nbytes(tree: object) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in tree_leaves(tree))
