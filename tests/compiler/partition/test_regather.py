"""Idle gathered copies are dropped to stay within a memory limit and gathered again; results stay the same."""

import numpy as np

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.partition.liveness import peak
from shardwise.compiler.partition.regather import regather_to_fit
from shardwise.compiler.plan.hardware import chip
from shardwise.sharding import AbstractMesh, NamedSharding
from shardwise.sharding import PartitionSpec as P

MESH = AbstractMesh((4,), ("data",))
RNG = np.random.default_rng(0)


def local_program(function, *args):
    """Return the program of one device and numpy arguments, for the shapes and specs of the arguments."""
    shaped = [sw.ShapeDtypeStruct(shape, np.float32, sharding=NamedSharding(MESH, spec)) for shape, spec in args]
    local = sw.jit(function).lower(*shaped)._prepared.stages.local
    return local, [RNG.normal(0, 0.1, shape).astype(np.float32) for shape, _ in args]


def gathers(local):
    return sum(local.times[equation] for equation in local.collectives() if equation.op.name == "all_gather")


def check_same(first, second, values):
    for a, b in zip(evaluate_shards(first, values), evaluate_shards(second, values), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)  # numpy sums a transposed operand in another order


ROWS, WEIGHT = ((64, 32), P("data", None)), ((32, 32), P("data", None))


def loss(x, *weights):
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.sum(x * x)


def gradients(x, *weights):
    """Return the gradients, sharded as the weights: their buffers are too small for gathered copies."""
    found = sw.grad(loss, argnums=tuple(range(1, 1 + len(weights))))(x, *weights)
    return [lax.with_sharding_constraint(gradient, NamedSharding(MESH, P("data", None))) for gradient in found]


class TestUnrolled:
    def test_every_weight_but_the_last_and_the_first_is_gathered_twice(self):
        """The gradient of the first layer needs no weight, and the last weight is used again at once."""
        local, values = local_program(gradients, ROWS, *[WEIGHT] * 5)
        assert gathers(local) == 5
        tight = regather_to_fit(local, 1)
        assert gathers(tight) == 5 + 3
        assert peak(tight)[0] < peak(local)[0]
        check_same(local, tight, values)

    def test_ops_that_xla_rewrites_on_cpu_stay(self):
        """The memory is that of XLA's program, in which quotients are products, but the program is the user's."""

        def divided(x, *weights):
            for w in weights:
                x = jnp.exp(x @ w)
                x = x / jnp.sum(x, -1, keepdims=True)
            return jnp.sum(x * x)

        def step(x, *weights):
            found = sw.grad(divided, argnums=tuple(range(1, 1 + len(weights))))(x, *weights)
            return [lax.with_sharding_constraint(each, NamedSharding(MESH, P("data", None))) for each in found]

        local, values = local_program(step, ROWS, *[WEIGHT] * 5)
        tight = regather_to_fit(local, 1, (), chip("cpu"))
        assert gathers(tight) > gathers(local)
        counts = [[each.op.name for each in found.program.walk()].count("div") for found in (local, tight)]
        assert counts[0] == counts[1] > 0
        check_same(local, tight, values)

    def test_a_lower_limit_repeats_more_gathers(self):
        """Every limit that can be met is met, and a lower limit never repeats fewer gathers."""
        local, _ = local_program(gradients, ((512, 32), P("data", None)), *[WEIGHT] * 8)
        most, least = peak(local)[0], peak(regather_to_fit(local, 1))[0]
        found = [(limit, regather_to_fit(local, limit)) for limit in range(most, least - 1, -512)]
        assert all(peak(program)[0] <= limit for limit, program in found)
        counts = [gathers(program) for _, program in found]
        assert counts == sorted(counts) and len(set(counts)) >= 3

    def test_a_program_that_fits_is_returned_unchanged(self):
        local, _ = local_program(gradients, ROWS, *[WEIGHT] * 5)
        assert regather_to_fit(local, peak(local)[0]) is local

    def test_a_program_without_gathers_is_returned_unchanged(self):
        local, _ = local_program(lambda x: jnp.sum(x * x), ROWS)
        assert regather_to_fit(local, 1) is local

    def test_transposed_and_converted_copies_are_dropped_too(self):
        def mixed(x, w, v):
            half, transposed = w.astype(jnp.bfloat16).astype(jnp.float32), v.T
            y = jnp.tanh(x @ half) @ transposed
            for _ in range(4):
                y = jnp.tanh(y)
            return jnp.sum(y), (y @ half.T) @ transposed.T

        large = ((256, 256), P("data", None))
        local, values = local_program(mixed, ((2048, 256), P("data", None)), large, large)
        tight = regather_to_fit(local, 1)
        assert gathers(tight) == gathers(local) + 2
        check_same(local, tight, values)


class TestLoops:
    def test_a_copy_that_is_idle_during_a_loop_is_dropped(self):
        def used_around_loop(x, w):
            y, z = x @ w, jnp.sin(x)  # the loop reads both

            def step(c, _):
                c = jnp.tanh(c * z + y)
                return c, jnp.exp(c)

            last, steps = lax.scan(step, y, length=8)
            return last @ w, steps

        local, values = local_program(used_around_loop, ROWS, WEIGHT)
        tight = regather_to_fit(local, 1)
        assert (gathers(local), gathers(tight)) == (1, 2)
        check_same(local, tight, values)

    def test_an_idle_copy_inside_a_loop_body_is_dropped(self):
        def body(x, w):
            y = jnp.tanh(x @ w)
            for _ in range(3):
                y = jnp.exp(-(y * y))
            big = jnp.concatenate([y, y, y, y], 1)
            return x + jnp.sum(jnp.tanh(big), 1, keepdims=True) + y @ w

        def loop(x, ws):
            return lax.scan(lambda c, w: (body(c, w), None), x, ws)[0]

        local, values = local_program(loop, ROWS, ((3, 32, 32), P(None, "data", None)))
        tight = regather_to_fit(local, 1)
        assert (gathers(local), gathers(tight)) == (3, 6)
        check_same(local, tight, values)


def test_the_source_of_a_copy_may_have_to_live_longer():
    """An activation is gathered twice: its shard, a quarter of it, stays live for the second gather."""

    def block(x, w, v):
        pinned = lax.with_sharding_constraint(jnp.tanh(x), NamedSharding(MESH, P("data", None)))
        y = pinned @ w
        for _ in range(3):
            y = jnp.exp(-(y * y))
        return pinned @ v, y

    local, values = local_program(
        block, ((64, 32), P("data", None)), ((32, 512), P(None, "data")), ((32, 512), P(None, "data"))
    )
    tight = regather_to_fit(local, 1)
    check_same(local, tight, values)
    assert peak(tight)[0] <= peak(local)[0]


def test_the_reason_of_a_repeated_gather_is_the_memory_limit():
    local, _ = local_program(gradients, ROWS, *[WEIGHT] * 5)
    reasons = [str(equation.reason) for equation in regather_to_fit(local, 1).collectives()]
    again = [
        reason
        for reason in reasons
        if reason.endswith("it is gathered again, because keeping the first copy would exceed the memory limit")
    ]
    assert len(again) == 3
    assert all("has sharding P('data', None)" in reason for reason in again)


class TestDefault:
    """Without the setting `memory_limit`, the limit is the memory of the devices, if that is known."""

    LAYERS = 20

    def gathers_on(self, hardware):
        shapes = [((4 * 40_000, 16384), P("data", None)), *[((16384, 16384), P("data", None))] * self.LAYERS]
        args = [sw.ShapeDtypeStruct(shape, np.float32, sharding=NamedSharding(MESH, spec)) for shape, spec in shapes]
        return sw.explain(gradients, hardware=hardware, advise=False)(*args).counts()["all_gather"]

    def test_the_limit_of_a_gpu_is_its_memory(self):
        """20 layers of activations and weights need more than 80 GB: too much for an H100, but not for a B200."""
        assert self.gathers_on("b200") == self.LAYERS
        assert self.gathers_on("h100") > self.LAYERS

    def test_virtual_cpu_devices_have_no_limit(self):
        assert self.gathers_on("cpu") == self.LAYERS

    def test_the_setting_overrides_the_memory_of_the_device(self):
        with sw.config.override("memory_limit", -1):
            assert self.gathers_on("h100") == self.LAYERS
        with sw.config.override("memory_limit", 1):
            assert self.gathers_on("b200") > self.LAYERS
