"""Random programs of linear ops on unreduced arrays: their values, types and wire bytes, eager and under jit.

The oracle runs the same steps in numpy on the sum of the terms. The elements are small integers, so sums are exact.
"""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.sharding import AxisType, NamedSharding, reshard
from shardwise.sharding import PartitionSpec as P
from tests.explicit.test_unreduced import summed, terms_of


def random_steps(rng, shape):
    """Return random linear steps: pairs of a function of jnp arrays and the same function of numpy arrays."""
    steps = []
    for _ in range(int(rng.integers(2, 7))):
        ndim = len(shape)
        dim = int(rng.integers(ndim)) if ndim else 0
        kinds = ["add", "scale", "negate", "factor"]
        if ndim:
            kinds += ["sum", "flip", "expand", "slice", "concatenate", "transpose", "cumsum", "roll", "pad", "take"]
        if ndim == 2:
            kinds += ["dot", "ravel"]
        kind = str(rng.choice(kinds))
        factor = rng.integers(-3, 4, size=shape).astype(np.float32)
        size = shape[dim] if ndim else 0
        low = int(rng.integers(0, size + 1)) if ndim else 0
        matrix = rng.integers(-3, 4, size=(shape[-1] if ndim else 1, 3)).astype(np.float32)
        indices = rng.integers(0, max(size, 1), size=2) if size else np.zeros(0, np.int32)
        before = (slice(None),) * dim
        step = {
            "add": lambda lib, x: x + x,
            "scale": lambda lib, x: x * 3,
            "negate": lambda lib, x: -x,
            "factor": lambda lib, x, f=factor: x * f,
            "sum": lambda lib, x, d=dim: x.sum(d),
            "flip": lambda lib, x, d=dim: lib.flip(x, d),
            "expand": lambda lib, x, d=dim: lib.expand_dims(x, d),
            "slice": lambda lib, x, b=before, n=low: x[(*b, slice(n, None))],
            "concatenate": lambda lib, x, d=dim: lib.concatenate([x, 2 * x], d),
            "transpose": lambda lib, x: lib.transpose(x),
            "cumsum": lambda lib, x, d=dim: lib.cumsum(x, d),
            "roll": lambda lib, x, d=dim: lib.roll(x, 2, d),
            "pad": lambda lib, x: lib.pad(x, 1),
            "take": lambda lib, x, d=dim, i=indices: lib.take(x, i, d),
            "dot": lambda lib, x, m=matrix: x @ m,
            "ravel": lambda lib, x: x.reshape(-1),
        }[kind]
        with np.errstate(all="ignore"):
            shape = step(np, np.zeros(shape, np.float32)).shape
        steps.append(step)
    return steps


SPECS = [P(unreduced={"X"}), P(unreduced={"X", "Y"}), P(unreduced={"Y"}, reduced={"X"})]


@pytest.mark.table(default=12)
@pytest.mark.parametrize("seed", range(24))
def test_a_random_linear_program(seed):
    rng = np.random.default_rng(seed)
    mesh = sw.make_mesh((4, 2), ("X", "Y"), axis_types=(AxisType.Explicit,) * 2)
    shape = tuple(int(size) for size in rng.integers(0 if seed % 8 == 7 else 1, 9, size=int(rng.integers(1, 3))))
    value = rng.integers(-4, 5, size=shape).astype(np.float32)
    steps = random_steps(rng, shape)
    spec = SPECS[seed % len(SPECS)]

    def run(lib, x):
        for step in steps:
            x = step(lib, x)
        return x

    expected = run(np, value)
    with sw.set_mesh(mesh):
        x = terms_of(value, spec)
        unreduced = {1: "{U:X", 2: "{U:(X,Y)"}[len(spec.unreduced)] if "X" in spec.unreduced else "{U:Y"
        for result in (run(jnp, x), sw.jit(lambda x: run(jnp, x))(x)):
            assert unreduced in str(sw.typeof(result))
            assert result.sharding.spec.unreduced == spec.unreduced
            np.testing.assert_array_equal(summed(result), expected)
        lowered = sw.jit(lambda x: run(jnp, x), keep_unused=True).lower(x)
        assert lowered.plan.collectives == ()
        constants = [constant.numpy() for constant in lowered._prepared.constants]
        np.testing.assert_array_equal(evaluate_shards(lowered._prepared.stages.local, [value, *constants])[0], expected)
        reduced = sw.jit(lambda x: reshard(run(jnp, x), P()))
        np.testing.assert_array_equal(reduced(x), expected)
        sent = sum(row.sent for row in reduced.lower(x).plan.collectives)
        count = len(set(x.sharding.terms.values()))
        assert sent == pytest.approx(2 * expected.nbytes * (count - 1) / count)


@pytest.mark.table(default=4)
@pytest.mark.parametrize("seed", range(8))
def test_the_transpose_of_a_random_linear_program(seed):
    """<f(x), ct> = <x, transpose(f)(ct)>, with the cotangents of the table of types."""
    rng = np.random.default_rng(100 + seed)
    mesh = sw.make_mesh((4, 2), ("X", "Y"), axis_types=(AxisType.Explicit,) * 2)
    value = rng.integers(-4, 5, size=(5, 3)).astype(np.float32)
    steps = random_steps(rng, value.shape)

    def run(lib, x):
        for step in steps:
            x = step(lib, x)
        return x

    expected = run(np, value)
    ct = rng.integers(-2, 3, size=expected.shape).astype(np.float32)
    with sw.set_mesh(mesh):
        for spec, dual, text in (
            (P(unreduced={"X"}), P(reduced={"X"}), "{R:X}"),
            (P(reduced={"X"}), P(unreduced={"X"}), "{U:X}"),
        ):
            x = sw.device_put(value, spec)
            result, pullback = sw.vjp(lambda x: run(jnp, x), x)
            (cotangent,) = pullback(sw.device_put(ct, dual))
            assert str(sw.typeof(result)).endswith("{U:X}" if spec.unreduced else "{R:X}")
            assert str(sw.typeof(cotangent)).endswith(text)
            product = np.vdot(value.astype(np.float64), np.asarray(reshard(cotangent, P())).astype(np.float64))
            assert product == pytest.approx(np.vdot(expected.astype(np.float64), ct.astype(np.float64)), rel=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_terms_are_rounded_where_the_type_is_unreduced(dtype):
    mesh = sw.make_mesh((4, 2), ("X", "Y"), axis_types=(AxisType.Explicit,) * 2)
    with sw.set_mesh(mesh):
        value = np.array([1.0, 2.5, -3.0], np.float32)
        x = sw.device_put(value, NamedSharding(mesh, P(unreduced={"X"})))
        for convert in (lambda x: x.astype(dtype), sw.jit(lambda x: lax.convert_element_type(x, dtype))):
            rounded = convert(x)
            assert rounded.dtype == dtype and "{U:X}" in str(sw.typeof(rounded))
            np.testing.assert_array_equal(np.asarray(reshard(rounded, P()), np.float32), value)
        assert sw.jit(lambda x: x.astype(dtype)).lower(x).plan.collectives == ()
