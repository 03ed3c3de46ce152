"""Unreduced and reduced arrays as in JAX: the types of results where both accept the op, and the terms of reshards."""

import jax
import numpy as np
import pytest

import shardwise as sw

pytestmark = pytest.mark.jax

X = np.arange(1, 33, dtype=np.float32).reshape(8, 4)

# (name, function of the library and an array, whether the array is unreduced; else it is reduced)
CASES = [
    ("add", lambda lib, x: x + x, True),
    ("sum", lambda lib, x: x.sum(), True),
    ("sum of a dim", lambda lib, x: x.sum(1), True),
    ("reshape", lambda lib, x: x.reshape(4, 8), True),
    ("transpose", lambda lib, x: x.T, True),
    ("broadcast", lambda lib, x: lib.numpy.broadcast_to(x, (2, 8, 4)), True),
    ("concatenate", lambda lib, x: lib.numpy.concatenate([x, x]), True),
    ("stack", lambda lib, x: lib.numpy.stack([x, x]), True),
    ("slice", lambda lib, x: x[2:4], True),
    ("pad", lambda lib, x: lib.numpy.pad(x, 1), True),
    ("astype", lambda lib, x: x.astype("bfloat16"), True),
    ("cond", lambda lib, x: lib.lax.cond(True, lambda y: y + y, lambda y: y, x), True),
    ("scan", lambda lib, x: lib.lax.scan(lambda c, _: (c + x, None), x, length=2)[0], True),
    ("nested jit", lambda lib, x: lib.jit(lambda y: y + y)(x), True),
    ("sin", lambda lib, x: lib.numpy.sin(x), False),
    ("scaled", lambda lib, x: x * 2, False),
    ("product", lambda lib, x: x * x, False),
    ("reduced sum", lambda lib, x: x.sum(), False),
    ("gradient", lambda lib, x: lib.grad(lambda y: (y * y).sum())(x), False),
    ("gradient of a remat", lambda lib, x: lib.grad(lambda y: lib.checkpoint(lib.numpy.sin)(y).sum())(x), False),
]


def on_mesh(library):
    kinds = (library.sharding.AxisType.Explicit,) * 2
    return library.set_mesh(library.make_mesh((4, 2), ("X", "Y"), axis_types=kinds))


def replicated(library):
    return library.device_put(X, library.sharding.PartitionSpec())


def result_of(library, function, unreduced):
    """Return the result of a function of an unreduced or a reduced array."""
    spec = library.sharding.PartitionSpec(**{"unreduced" if unreduced else "reduced": {"X"}})
    x = library.jit(lambda x: library.sharding.reshard(x, spec))(replicated(library))
    return library.jit(lambda x: function(library, x))(x)


@pytest.mark.parametrize(("function", "unreduced"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_results_have_jax_types(function, unreduced):
    with on_mesh(jax):
        expected = result_of(jax, function, unreduced).sharding.spec
    with on_mesh(sw):
        result = result_of(sw, function, unreduced)
        elements = np.asarray(sw.sharding.reshard(result, sw.sharding.PartitionSpec()), np.float32)
    assert (result.sharding.spec.unreduced, result.sharding.spec.reduced) == (expected.unreduced, expected.reduced)
    on_one_device = np.asarray(function(sw, sw.numpy.asarray(X)), np.float32)  # XLA's sums of stacked terms are wrong
    np.testing.assert_allclose(elements, on_one_device, rtol=1e-5)


# Pairs of specs, each with its entries and its unreduced axes; XLA aborts the process in other reshards.
REPLICATED, SUM, SUM_OF_BOTH, ROWS = ((), ""), ((), "X"), ((), "XY"), (("X",), "")
RESHARDS = [
    (REPLICATED, SUM),
    (REPLICATED, SUM_OF_BOTH),
    (REPLICATED, (("Y",), "X")),
    (ROWS, SUM),
    (SUM, REPLICATED),
    (SUM, ROWS),
    (SUM, SUM_OF_BOTH),
    (SUM, (("Y",), "X")),
]


def terms(library, before, after):
    """Return the terms on all devices after a reshard between two specs."""
    sharding = library.sharding

    def spec(fields):
        entries, unreduced = fields
        return sharding.PartitionSpec(*entries, unreduced=set(unreduced))

    with on_mesh(library):
        x = library.jit(lambda x: sharding.reshard(x, spec(before)))(replicated(library))
        y = library.jit(lambda x: sharding.reshard(x, spec(after)))(x)
        return [np.asarray(shard.data) for shard in sorted(y.addressable_shards, key=lambda shard: shard.device.id)]


@pytest.mark.parametrize(("before", "after"), RESHARDS, ids=str)
def test_reshards_leave_jax_terms(before, after):
    for ours, theirs in zip(*(terms(library, before, after) for library in (sw, jax)), strict=True):
        np.testing.assert_array_equal(ours, theirs)
