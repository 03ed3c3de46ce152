"""Chex: dataclasses, static and value assertions, `chexify`, `assert_max_traces`, numerical gradients, variants."""

import unittest

import chex
import jax
import jax.numpy as jnp
import numpy as np

from tests.ecosystem.report import explain, report, shard


@chex.dataclass
class Parameters:
    x: chex.ArrayDevice
    y: chex.ArrayDevice


rng = np.random.default_rng(0)
batch = shard(rng.normal(size=(32, 4)).astype(np.float32), "data")
parameters = Parameters(x=shard(rng.normal(size=(4, 8)).astype(np.float32), None, "model"), y=jnp.ones((1, 8)))
doubled = jax.tree.map(lambda x: 2.0 * x, parameters)
report("dataclass", [float(doubled.x.sum()), float(doubled.y.sum())])
report("fields", [*doubled.keys()])


def message(function, *args, **keywords):
    """Return the first line of the error of a call, or "accepted"."""
    try:
        function(*args, **keywords)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return "accepted"


x, y = parameters.x, parameters.y
report(
    "static assertions",
    [
        message(chex.assert_shape, x, (4, 8)),
        message(chex.assert_shape, x, (4, None)),
        message(chex.assert_shape, [x, y], (4, 8)),
        message(chex.assert_rank, [x, y], {1, 3}),
        message(chex.assert_equal_shape, [x, y]),
        message(chex.assert_type, [x, y], [float, int]),
        message(chex.assert_axis_dimension, x, 1, 7),
        message(chex.assert_tree_shape_prefix, doubled, (4,)),
        message(chex.assert_trees_all_equal_structs, doubled, parameters),
        message(chex.assert_scalar_positive, -1.0),
        message(chex.assert_devices_available, 99, "cpu").split(" in [")[0],
    ],
)
report(
    "value assertions",
    [
        message(chex.assert_trees_all_close, doubled, parameters).split(":")[0],
        message(chex.assert_trees_all_close, doubled, jax.tree.map(lambda x: x + x, parameters)),
        message(chex.assert_tree_all_finite, {"a": jnp.array([1.0, jnp.nan])}).split(":")[0],
        message(chex.assert_tree_is_on_device, doubled, platform="cpu").split(":")[0],
        message(chex.assert_numerical_grads, lambda x: jnp.sin(x).sum(), (jnp.arange(3.0),), 1),
    ],
)


@jax.jit
@chex.assert_max_traces(n=1)
def loss(parameters, batch):
    chex.assert_shape(batch, (None, 4))
    chex.assert_tree_shape_suffix(parameters.y, (8,))
    return jnp.mean((batch @ parameters.x + parameters.y) ** 2)


explain(loss, parameters, batch)
report("loss", [float(loss(parameters, batch)), float(loss(doubled, batch))])
report("retraced", message(loss, parameters, batch[:8]).split(":")[0])


@chex.chexify
@jax.jit
def logp1_abs_safe(x):
    chex.assert_tree_all_finite(x)
    return jnp.log(jnp.abs(x) + 1)


report("chexify", logp1_abs_safe(batch))
logp1_abs_safe.wait_checks()
logp1_abs_safe(jnp.array([jnp.nan, 3.0]))
report("failed check", message(logp1_abs_safe.wait_checks).split(":")[0])

with chex.fake_jit():
    report("fake jit", jax.jit(lambda x: x + float(x))(jnp.float32(2)))


def _compile_forbidden():
    with chex.restrict_backends(forbidden=["cpu"]):
        jax.jit(lambda x: x * 3.25 - 1)(np.ones(7, np.float32))


report("forbidden", message(_compile_forbidden))


class VariantsTest(chex.TestCase):
    @chex.variants(with_jit=True, without_jit=True, with_device=True, without_device=True)
    def test(self):
        chex.assert_trees_all_close(self.variant(lambda x, y: x + y)(1.0, np.arange(2.0)), jnp.array([1.0, 2.0]))


result = unittest.TestResult()
unittest.defaultTestLoader.loadTestsFromTestCase(VariantsTest).run(result)
report("variants", [result.testsRun, len(result.errors), len(result.failures)])
