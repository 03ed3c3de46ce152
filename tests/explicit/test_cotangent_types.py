"""The types of cotangents at the boundaries of calls, loops, branches and custom rules, with arrays outside of jit.

The table: the cotangent of a reduced value is unreduced, that of an unreduced value is reduced, and that of any other
value has its primal's type. The values are those of the same function on one device.
"""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.errors import ShardingTypeError
from shardwise.sharding import PartitionSpec as P
from shardwise.sharding import reshard
from tests.explicit.typed_arrays import type_text

X = np.arange(1, 9, dtype=np.float32)
W = np.arange(2, 10, dtype=np.float32)


pytestmark = pytest.mark.usefixtures("explicit_mesh")


def collectives(function, *args):
    return [row.kind for row in sw.jit(function).lower(*args).plan.collectives]


@sw.custom_jvp
def custom_jvp_square(x):
    return x * x


custom_jvp_square.defjvp(lambda primals, tangents: (primals[0] * primals[0], 2 * primals[0] * tangents[0]))


@sw.custom_vjp
def custom_vjp_square(x):
    return x * x


custom_vjp_square.defvjp(lambda x: (x * x, x), lambda x, ct: (2 * x * ct,))


# Each computes x * x elementwise, through a boundary.
SQUARES = {
    "no boundary": lambda x: x * x,
    "jit": sw.jit(lambda x: x * x),
    "nested jit": sw.jit(sw.jit(sw.jit(lambda x: x * x))),
    "remat": sw.checkpoint(lambda x: jnp.exp(jnp.log(x)) * x),
    "cond": lambda x: lax.cond(x.sum() > 0, lambda y: y * y, lambda y: y, x),
    "switch": lambda x: lax.switch(2, [lambda y: y, lambda y: y + y, lambda y: y * y], x),
    "scan over a carry": lambda x: lax.scan(lambda c, _: (c * x, None), x, length=1)[0],
    "scan over slices": lambda x: lax.scan(lambda c, y: (c, y * y), 0, x)[1],
    "scan of scans": lambda x: lax.scan(lambda c, _: lax.scan(lambda d, _: (d * x, None), c, length=1), x, length=1)[0],
    "fori_loop": lambda x: lax.fori_loop(0, 1, lambda i, c: c * x, x),
    "map": lambda x: lax.map(lambda y: y * y, x),
    "vmap": sw.vmap(lambda x: x * x),
    "custom_jvp": custom_jvp_square,
    "custom_vjp": custom_vjp_square,
    "jit of remat of scan": sw.jit(
        sw.checkpoint(lambda x: lax.scan(lambda c, _: (custom_vjp_square(c), None), x, length=1)[0])
    ),
}


class TestReducedPrimals:
    @pytest.mark.parametrize("square", SQUARES.values(), ids=list(SQUARES))
    @pytest.mark.parametrize("under_jit", [False, True], ids=["eager", "jit"])
    def test_gradients_are_unreduced(self, square, under_jit):
        def loss(x):
            return (square(x) * W).sum()

        x = sw.device_put(X, P(reduced={"X"}))
        gradient = (sw.jit(sw.grad(loss)) if under_jit else sw.grad(loss))(x)
        assert type_text(gradient) == "f32[8]{U:X}"
        np.testing.assert_allclose(reshard(gradient, P()), 2 * X * W, rtol=1e-5)

    @pytest.mark.parametrize("square", SQUARES.values(), ids=list(SQUARES))
    def test_gradients_send_nothing(self, square):
        assert collectives(sw.grad(lambda x: (square(x) * W).sum()), sw.device_put(X, P(reduced={"X"}))) == []

    @pytest.mark.parametrize("square", SQUARES.values(), ids=list(SQUARES))
    def test_one_all_reduce_after_a_sharded_batch(self, square):
        batch = np.arange(32, dtype=np.float32).reshape(4, 8)

        def loss(x, batch):
            return (square(x) * batch).sum()

        x, sharded = sw.device_put(X, P(reduced={"X"})), sw.device_put(batch, P("X", None))
        gradient = sw.jit(sw.grad(loss))(x, sharded)
        assert type_text(gradient) == "f32[8]{U:X}"
        np.testing.assert_allclose(reshard(gradient, P()), 2 * X * batch.sum(0), rtol=1e-5)
        assert collectives(lambda x, batch: reshard(sw.grad(loss)(x, batch), P()), x, sharded) == ["all_reduce"]

    def test_unused_arguments_have_unreduced_zeros(self):
        x = sw.device_put(X, P(reduced={"X"}))
        assert type_text(sw.grad(lambda x: jnp.zeros(()))(x)) == "f32[8]{U:X}"
        (gradient,) = sw.vjp(lambda x: jnp.ones(3), x)[1](jnp.ones(3))
        assert type_text(gradient) == "f32[8]{U:X}"
        np.testing.assert_array_equal(reshard(gradient, P()), np.zeros(8))

    def test_tangents_are_reduced(self):
        x = sw.device_put(X, P(reduced={"X"}))
        value, tangent = sw.jvp(lambda x: x * x, (x,), (x,))
        assert type_text(value) == type_text(tangent) == "f32[8]{R:X}"
        np.testing.assert_array_equal(tangent, 2 * X * X)
        with_linear = sw.linearize(lambda x: x * x, x)[1](x)
        assert type_text(with_linear) == "f32[8]{R:X}"

    def test_gradients_in_another_precision(self):
        @sw.custom_vjp
        def double(x):
            return 2 * x.astype(jnp.bfloat16)

        double.defvjp(lambda x: (double(x), None), lambda _, ct: (2 * ct,))
        gradient = sw.grad(lambda x: (double(x).astype(jnp.float32) * W).sum())(sw.device_put(X, P(reduced={"X"})))
        assert type_text(gradient) == "f32[8]{U:X}"
        np.testing.assert_array_equal(reshard(gradient, P()), 2 * W)


# Each computes 2 * x, through a boundary, and is linear.
DOUBLES = {
    "no boundary": lambda x: x + x,
    "jit": sw.jit(lambda x: x + x),
    "nested jit": sw.jit(sw.jit(lambda x: x * 2)),
    "remat": sw.checkpoint(lambda x: x + x),
    "cond": lambda x: lax.cond(True, lambda y: y + y, lambda y: y, x),
    "scan over a carry": lambda x: lax.scan(lambda c, _: (c + c, None), x, length=1)[0],
    "scan over a const": lambda x: lax.scan(lambda c, _: (c + x, None), x, length=1)[0],
    "scan over slices": lambda x: lax.scan(lambda c, y: (c, y + y), 0, x)[1],
    "fori_loop": lambda x: lax.fori_loop(0, 1, lambda i, c: c + x, x),
    "vmap": sw.vmap(lambda x: x + x),
}


class TestUnreducedPrimals:
    @pytest.mark.parametrize("double", DOUBLES.values(), ids=list(DOUBLES))
    def test_cotangents_are_reduced(self, double):
        x = sw.device_put(X, P(unreduced={"X"}))
        value, pullback = sw.vjp(double, x)
        assert type_text(value) == "f32[8]{U:X}"
        np.testing.assert_array_equal(reshard(value, P()), 2 * X)
        (cotangent,) = pullback(sw.device_put(W, P(reduced={"X"})))
        assert type_text(cotangent) == "f32[8]{R:X}"
        np.testing.assert_array_equal(cotangent, 2 * W)

    @pytest.mark.parametrize("double", DOUBLES.values(), ids=list(DOUBLES))
    def test_tangents_are_unreduced(self, double):
        x, dx = sw.device_put(X, P(unreduced={"X"})), sw.device_put(W, P(unreduced={"X"}))
        for value, tangent in (sw.jvp(double, (x,), (dx,)), (double(x), sw.linearize(double, x)[1](dx))):
            assert type_text(value) == type_text(tangent) == "f32[8]{U:X}"
            np.testing.assert_array_equal(reshard(tangent, P()), 2 * W)

    @pytest.mark.parametrize("double", DOUBLES.values(), ids=list(DOUBLES))
    def test_forward_and_backward_send_nothing(self, double):
        x, ct = sw.device_put(X, P(unreduced={"X"})), sw.device_put(W, P(reduced={"X"}))
        assert collectives(double, x) == []
        assert collectives(lambda x, ct: sw.vjp(double, x)[1](ct), x, ct) == []

    def test_a_while_loop_carries_terms(self):
        def double(x):
            return lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, c[1] + x), (0, x))[1]

        x = sw.device_put(X, P(unreduced={"X"}))
        assert type_text(double(x)) == "f32[8]{U:X}"
        np.testing.assert_array_equal(reshard(double(x), P()), 2 * X)
        assert collectives(double, x) == []
        _, tangent = sw.jvp(double, (x,), (x,))
        assert type_text(tangent) == "f32[8]{U:X}"
        np.testing.assert_array_equal(reshard(tangent, P()), 2 * X)

    def test_gradient_through_the_sum_of_the_terms(self):
        x = sw.device_put(X, P(unreduced={"X"}))
        gradient = sw.grad(lambda x: (reshard(x, P()) ** 2).sum())(x)
        assert type_text(gradient) == "f32[8]{R:X}"
        np.testing.assert_array_equal(gradient, 2 * X)

    def test_a_replicated_factor_has_a_replicated_cotangent(self):
        x, w = sw.device_put(X, P(unreduced={"X"})), sw.device_put(W, P())
        gradient = sw.grad(lambda w: reshard((x * w).sum(), P()))(w)
        assert type_text(gradient) == "f32[8]"
        np.testing.assert_array_equal(gradient, X)

    def test_branches_of_different_types_are_an_error(self):
        x = sw.device_put(X, P(unreduced={"X"}))
        with pytest.raises((TypeError, ShardingTypeError), match=r"U:X"):
            lax.cond(True, lambda y: y, lambda y: reshard(y, P()), x)
        with pytest.raises((TypeError, ShardingTypeError), match=r"U:X"):
            lax.scan(lambda c, _: (reshard(c, P()), None), x, length=2)
