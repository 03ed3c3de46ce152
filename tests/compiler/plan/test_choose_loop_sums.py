"""Sums that loops carry or stack stay unreduced until after the loops, where that is right and where it pays.

Every program is simulated on all devices and compared with its evaluation in numpy.
"""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.transforms.inline import inline
from shardwise.sharding import AbstractMesh, NamedSharding
from shardwise.sharding import PartitionSpec as P

MESH = AbstractMesh((8,), ("data",))
ROWS = P(None, "data", None)  # microbatches of sharded rows
MICRO, LAYERS = 5, 3


def run(function, *args, mesh=MESH):
    """Partition a function of (shape, spec) or (array, spec) arguments, and check its simulation.

    Returns:
        For each kind of collective, how often it runs in one call, and the local program.
    """
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=x).astype(np.float32) / 2 if isinstance(x, tuple) else np.asarray(x) for x, _ in args]
    structs = [
        sw.ShapeDtypeStruct(array.shape, array.dtype, sharding=NamedSharding(mesh, spec))
        for array, (_, spec) in zip(arrays, args, strict=True)
    ]
    jitted = sw.jit(function)
    local = jitted.lower(*structs)._prepared.stages.local
    with np.errstate(all="ignore"):
        expected = evaluate(inline(jitted.trace(*structs).program), arrays)
        actual = evaluate_shards(local, arrays)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4)
        np.testing.assert_array_equal(np.signbit(one[one == 0]), np.signbit(other[one == 0]))
    counts = {}
    for equation in local.collectives():
        counts[equation.op.name] = counts.get(equation.op.name, 0) + local.times[equation]
    return counts, local


def block(x, w):
    return jnp.tanh(x @ w)


def layers_loss(ws, x, block=block):
    return jnp.mean(jnp.square(lax.scan(lambda x, w: (block(x, w), None), x, ws)[0]))


def accumulate(loss, ws, xs):
    """Add up the gradients of all microbatches."""

    def add(total, x):
        return total + sw.grad(loss)(ws, x), None

    return lax.scan(add, jnp.zeros(ws.shape, ws.dtype), xs)[0]


def test_gradients_are_reduced_once_after_both_loops():
    counts, local = run(lambda ws, xs: accumulate(layers_loss, ws, xs), ((LAYERS, 8, 8), P()), ((MICRO, 16, 8), ROWS))
    assert counts == {"all_reduce": 1}
    assert local.sent == 2 * 7 / 8 * LAYERS * 8 * 8 * 4
    assert not any(equation.op.name == "to_partial" for equation in local.program.walk())  # zeros are terms of zeros
    (equation,) = local.collectives()
    dot = f"dot at test_choose_loop_sums.py:{block.__code__.co_firstlineno + 1}"
    loop = f"scan at test_choose_loop_sums.py:{accumulate.__code__.co_firstlineno + 6}"
    assert str(equation.reason) == (
        f"{dot} leaves an unreduced sum over 'data', which {loop} keeps until its last iteration; "
        "`output` needs it reduced"
    )


def test_a_scale_of_every_layer_is_reduced_once():
    def loss(scales, x):
        return jnp.sum(lax.scan(lambda x, scale: (jnp.tanh(x) * scale, None), x, scales)[0])

    counts, local = run(sw.grad(loss), ((96, 8), P()), ((16, 8), P("data")))
    assert counts == {"all_reduce": 1}
    assert local.sent == 2 * 7 / 8 * 96 * 8 * 4


@pytest.mark.parametrize("policy", [None, sw.checkpoint_policies.dots_saveable], ids=["nothing", "dots"])
def test_rematerialized_layers(policy):
    def loss(ws, x):
        return layers_loss(ws, x, sw.checkpoint(block, policy=policy))

    counts, _ = run(lambda ws, xs: accumulate(loss, ws, xs), ((LAYERS, 8, 8), P()), ((MICRO, 16, 8), ROWS))
    assert counts == {"all_reduce": 1}


def test_three_nested_loops():
    """Groups of layers: a stack of stacks is added up over microbatches."""

    def loss(groups, x):
        def group(x, ws):
            return lax.scan(lambda x, w: (block(x, w), None), x, ws)[0], None

        return jnp.mean(lax.scan(group, x, groups)[0])

    counts, local = run(lambda ws, xs: accumulate(loss, ws, xs), ((2, LAYERS, 8, 8), P()), ((MICRO, 16, 8), ROWS))
    assert counts == {"all_reduce": 1}
    assert local.sent == 2 * 7 / 8 * 2 * LAYERS * 8 * 8 * 4


def test_a_weight_that_all_layers_share():
    """The backward loop carries the gradient of a constant of the loop."""

    def loss(w, x):
        return jnp.mean(lax.scan(lambda x, _: (block(x, w), None), x, length=LAYERS)[0])

    counts, _ = run(lambda w, xs: accumulate(loss, w, xs), ((8, 8), P()), ((MICRO, 16, 8), ROWS))
    assert counts == {"all_reduce": 1}


def test_branches_inside_of_the_loop():
    def loss(ws, x):
        def layer(x, w):
            return lax.cond(jnp.sum(w) > 0, lambda: block(x, w), lambda: block(x, 2 * w)), None

        return jnp.mean(lax.scan(layer, x, ws)[0])

    counts, _ = run(lambda ws, xs: accumulate(loss, ws, xs), ((LAYERS, 8, 8), P()), ((MICRO, 16, 8), ROWS))
    assert counts == {"all_reduce": 1}


def test_fori_loop():
    def function(w, xs):
        def add(i, total):
            return total + sw.grad(lambda w: jnp.mean(block(xs[i], w)))(w)

        return lax.fori_loop(0, MICRO, add, jnp.zeros((8, 8)))

    counts, _ = run(function, ((8, 8), P()), ((MICRO, 16, 8), ROWS))
    assert counts == {"all_reduce": 1}


@pytest.mark.parametrize("steps", [0, 3])
def test_while_loop_whose_predicate_does_not_read_the_sum(steps):
    def function(w, x, steps):
        def add(state):
            i, total = state
            return i + 1, total + sw.grad(lambda w: jnp.mean(block(x, w)))(w)

        return lax.while_loop(lambda state: state[0] < steps, add, (0, w))[1]

    counts, _ = run(function, ((8, 8), P()), ((16, 8), P("data")), (np.int32(steps), P()))
    assert counts == {"all_reduce": 1}


def test_vmap_of_the_loops():
    """Two models with their own weights; the rows of their microbatches are sharded."""

    def function(ws, xs):
        return sw.vmap(lambda ws, xs: accumulate(layers_loss, ws, xs))(ws, xs)

    counts, _ = run(function, ((2, LAYERS, 8, 8), P()), ((2, MICRO, 16, 8), P(None, None, "data", None)))
    assert counts == {"all_reduce": 1}


@pytest.mark.parametrize("axes", [(8,), (4, 2)], ids=str)
def test_uneven_shapes(axes):
    mesh = AbstractMesh(axes, ("data", "model")[: len(axes)])
    columns = P(None, None, "model") if len(axes) == 2 else P()
    counts, _ = run(
        lambda ws, xs: accumulate(layers_loss, ws, xs), ((LAYERS, 7, 7), columns), ((MICRO, 13, 7), ROWS), mesh=mesh
    )
    assert counts["all_reduce"] >= 1


def test_a_sharded_result_is_reduce_scattered_once():
    def function(ws, xs):
        total = accumulate(layers_loss, ws, xs)
        return lax.with_sharding_constraint(total, NamedSharding(MESH, P(None, "data")))

    counts, local = run(function, ((LAYERS, 8, 8), P()), ((MICRO, 16, 8), ROWS))
    assert counts == {"reduce_scatter": 1}
    assert local.sent == 7 / 8 * LAYERS * 8 * 8 * 4


def test_stacked_losses_are_reduced_once():
    counts, _ = run(lambda xs: lax.scan(lambda c, x: (c, jnp.sum(x * x)), 0, xs)[1], ((MICRO, 16, 8), ROWS))
    assert counts == {"all_reduce": 1}


class TestNotUnreduced:
    """Sums that the loop reads other than by adding to them are reduced in every iteration."""

    def test_a_carry_that_is_not_only_added_to(self):
        def add(total, x):
            return jnp.tanh(total) + x.T @ x, None

        counts, _ = run(lambda xs: lax.scan(add, jnp.zeros((8, 8)), xs)[0], ((MICRO, 16, 8), ROWS))
        assert counts == {"all_reduce": MICRO}

    def test_a_carry_that_is_multiplied_by_data(self):
        """2 and -1 are terms of 1, and 1 · inf is inf, but 2 · inf - 1 · inf is NaN."""
        counts, _ = run(
            lambda xs, s: lax.scan(lambda total, x: (total * s + x.T @ x, None), jnp.ones((8, 8)), xs)[0],
            ((MICRO, 16, 8), ROWS),
            (np.float32(np.inf), P()),
        )
        assert counts == {"all_reduce": MICRO}

    def test_a_carry_that_is_scaled_by_a_constant_is_only_added_to(self):
        def add(total, x):
            return 0.9 * total + x.T @ x, None

        counts, _ = run(lambda xs: lax.scan(add, jnp.zeros((8, 8)), xs)[0], ((MICRO, 16, 8), ROWS))
        assert counts == {"all_reduce": 1}

    def test_a_carry_that_is_printed(self):
        def add(total, x):
            sw.debug.print("{}", total)
            return total + x.T @ x, None

        counts, _ = run(lambda xs: lax.scan(add, jnp.zeros((8, 8)), xs)[0], ((MICRO, 16, 8), ROWS))
        assert counts == {"all_reduce": MICRO}

    def test_a_predicate_that_reads_the_sum(self):
        def function(xs):
            def add(state):
                i, total = state
                return i + 1, total + jnp.sum(jnp.square(xs[i]))

            return lax.while_loop(lambda state: (state[0] < MICRO) & (state[1] < 100), add, (0, 0.0))[1]

        counts, local = run(function, ((MICRO, 512, 64), ROWS))
        assert counts == {"all_reduce": 1}  # of one iteration: the trip count is not known
        (equation,) = local.collectives()
        assert equation not in local.program.equations

    def test_a_stack_of_narrower_numbers(self):
        """Rounding the terms of a sum to bfloat16 loses what rounding the sum keeps."""

        def function(xs):
            return lax.scan(lambda c, x: (c, jnp.sum(x, 0).astype(jnp.bfloat16)), 0, xs)[1].astype(jnp.float32)

        large = np.float32([[[256.0]] * 4 + [[-256.0]] * 3 + [[-255.5]]] * MICRO)
        counts, _ = run(function, (large, ROWS))
        assert counts == {"all_reduce": MICRO}


class TestInitialValue:
    """The initial value of a carry is a term of the sum on one device, and the others start from zero."""

    @pytest.mark.parametrize("start", [0.0, -0.0, 3.5, np.inf, np.nan])
    @pytest.mark.parametrize("length", [0, 2])
    def test_special_numbers(self, start, length):
        def function(start, xs):
            return lax.scan(lambda total, x: (total - jnp.sum(x, 0), None), start, xs)[0]

        counts, _ = run(function, (np.full(8, start, np.float32), P()), (np.zeros((length, 16, 8), np.float32), ROWS))
        assert counts == {"all_reduce": 1} if length else counts["all_reduce"] <= 1

    def test_a_sharded_initial_value(self):
        def function(start, xs):
            return lax.scan(lambda total, x: (total + x.T @ x, None), start, xs)[0]

        counts, local = run(function, ((8, 8), P("data")), ((MICRO, 16, 8), ROWS))
        assert sum(counts.values()) <= 2 * MICRO
        assert local.sent <= MICRO * 7 / 8 * 8 * 8 * 4 + 7 / 8 * 8 * 8 * 4


def test_devices_agree_with_one_device(mesh):
    """Real devices: uneven rows, an infinite initial value, and gradients of scanned layers."""

    def function(ws, xs, start):
        total = accumulate(layers_loss, ws, xs)
        return total, lax.scan(lambda total, x: (total - jnp.sum(x, 0), None), start, xs)[0]

    rng = np.random.default_rng(1)
    ws, xs = (rng.normal(size=shape).astype(np.float32) for shape in ((LAYERS, 6, 6), (MICRO, 7, 6)))
    start = np.float32([0, -0.0, 1, np.inf, -np.inf, np.nan])
    expected = sw.jit(function)(ws, xs, start)
    args = [
        sw.device_put(array, NamedSharding(mesh, spec))
        for array, spec in zip((ws, xs, start), (P(), ROWS, P()), strict=True)
    ]
    compiled = sw.jit(function).lower(*args).compile()
    assert {row.times for row in compiled.plan.collectives} == {1}
    for actual, reference in zip(compiled(*args), expected, strict=True):
        np.testing.assert_allclose(actual, reference, rtol=1e-5, atol=1e-6)
