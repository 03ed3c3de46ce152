"""Microbatches of a model with fewer sequences than devices, for a batch whose plans do not fit, or are slow."""

import math
from collections.abc import Callable

from shardwise.errors import AutoshardError
from shardwise.launch.preset_target import Batch, preset_step
from shardwise.layout_search.evaluate import Alternative
from shardwise.layout_search.result import AutoSharding
from shardwise.tree_util import tree_leaves

_ESTIMATED = 0.9  # the fraction of the memory that microbatches may need by the estimate, so that they probably fit
_MUCH_SLOWER = (
    1.5  # the time of a plan that fits, relative to one that nearly fits, at which microbatches may be faster
)
_NEARLY = 2  # the memory of a plan that may fit with half of the batch, relative to that of a device


def faster_without_limit(result: AutoSharding, memory: float) -> Alternative | None:
    """Return the fastest plan that nearly fits in memory, if the best plan that fits takes much longer; else None."""
    nearly = [other for other in result.alternatives if not other.fits and other.peak_bytes <= _NEARLY * memory]
    fastest = min(nearly, key=lambda other: other.seconds, default=None)
    return fastest if fastest is not None and _MUCH_SLOWER * fastest.seconds <= result.seconds else None


def search_smaller_microbatches(
    name: str,
    batch: Batch,
    search: Callable[..., Callable[..., AutoSharding]],
    too_large: Alternative,
    memory: float,
) -> tuple[Batch, AutoSharding] | None:
    """Return the best plan for the fewest further microbatches that fit in memory by an estimate; None if none fits.

    Args:
        name: the name of the model.
        batch: the batch.
        search: `autoshard`, with the devices.
        too_large: a plan for the batch that does not fit.
        memory: the bytes that each device may hold.
    """
    state, _ = preset_step(name, batch)[1]
    state_bytes, gradient_bytes = (_nbytes(tree) / too_large.mesh.size for tree in (state, state["weights"]))
    activation_bytes = too_large.peak_bytes - state_bytes - gradient_bytes
    for smaller in batch.in_smaller_microbatches():
        # The gradients of a microbatch are held with the sum of those before.
        needed = state_bytes + 2 * gradient_bytes + activation_bytes * batch.microbatches / smaller.microbatches
        if needed <= _ESTIMATED * memory:
            step, args = preset_step(name, smaller)
            try:
                return smaller, search(step)(*args)
            except AutoshardError:
                break
    return None


def _nbytes(tree: object) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in tree_leaves(tree))
