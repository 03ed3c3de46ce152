"""A run that sums its batches, and resumes from the latest checkpoint of a folder."""

import numpy as np

import shardwise as sw
from shardwise import P, checkpoints


def resume(folder, batches, mesh, steps, samples_of, numbers_of):
    """Sum the batches of some steps, from the latest checkpoint on; return the samples of these steps, and the sum."""
    seen, start = [], 0
    total = sw.device_put(np.zeros((), np.int32), sw.NamedSharding(mesh, P()))
    with checkpoints.Manager(folder, every_steps=1, save_on_sigterm=False) as manager, batches:
        if manager.latest() is not None:
            restored = manager.restore(total)
            start, total = restored.step, restored.tree
            batches.restore(restored.metadata["data"])
        for step in range(start + 1, start + 1 + steps):
            batch = next(batches)
            seen.append(samples_of(batch))
            total = total + numbers_of(batch).sum()
            manager.save(step, total, metadata={"data": batches.state()})
    return seen, int(total)
