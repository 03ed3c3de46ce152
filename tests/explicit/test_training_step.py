"""A training step of a transformer with shardings in types: the same results and wire bytes as with Auto axes."""

import numpy as np
import pytest

import shardwise as sw
from benchmarks.transformer import KINDS, Model, arguments, training_step
from benchmarks.workload import no_pin
from shardwise.sharding import AxisType, NamedSharding
from shardwise.sharding import PartitionSpec as P

MODEL = Model(2, heads=8)


def setup(kind, axis_type, scanned):
    parallel, model = KINDS[kind], MODEL.with_training("sgd", scanned)
    mesh = sw.make_mesh(*parallel.mesh, axis_types=(axis_type,) * len(parallel.mesh[0]))
    step = training_step(sw, model, parallel, no_pin, explicit=axis_type is AxisType.Explicit)
    return mesh, step, arguments(model, parallel, lambda x, *spec: sw.device_put(x, NamedSharding(mesh, P(*spec))))


@pytest.mark.table(default=1)
@pytest.mark.parametrize("scanned", [False, True], ids=["unrolled", "scan"])
@pytest.mark.parametrize("kind", ["data parallel", "tensor parallel", "data × tensor"])
def test_a_step_with_explicit_axes_is_like_one_with_auto_axes(kind, scanned):
    results, sent = [], []
    for axis_type in (AxisType.Explicit, AxisType.Auto):
        mesh, step, args = setup(kind, axis_type, scanned)
        with sw.set_mesh(mesh):
            sent.append(sw.jit(step).lower(*args).plan.wire_bytes)
            results.append(sw.jit(step)(*args))
            if axis_type is AxisType.Explicit:
                assert sw.tree.map(sw.typeof, results[0][0]) == sw.tree.map(sw.typeof, args[0])
    assert sent[0] <= sent[1]
    for explicit, auto in zip(*map(sw.tree.leaves, results), strict=True):
        np.testing.assert_allclose(explicit, auto, rtol=1e-4, atol=1e-5)
