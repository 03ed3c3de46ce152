"""Residuals have few bytes: what is cheap to recompute from others is not saved."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax, nn
from shardwise.ad_checkpoint import checkpoint_name
from shardwise.compiler.control.scan import Scan
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import parse_type
from shardwise.compiler.ir.verify import verify
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.elementwise.arithmetic import Mul
from shardwise.compiler.ops.elementwise.transcendental import Exp
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.movement import Reshape, Transpose
from shardwise.compiler.ops.shape.slicing import Concatenate, Reverse, Slice
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.transforms.jvp import jvp_program
from shardwise.compiler.transforms.linearize import linearize_program


def rows_of(x):
    return Broadcast((5, 4), (1,))(x)


def scaled(x, s):
    """One row of factors, broadcast to all rows."""
    return [Mul()(x, rows_of(s))]


def scaled_deeper(x, s):
    """The factors are computed, transposed and broadcast."""
    factors = Reshape((4,))(Transpose((1, 0))(Exp()(Reshape((2, 2))(s))))
    return [Mul()(x, rows_of(factors))]


def transposed(x, s):
    """A product with the transpose of a value that another product reads directly."""
    product = Dot(((1,), (1,)))(x, x)
    return [Mul()(Sum((0,))(Dot(((1,), (0,)))(product, x)), s), Dot(((1,), (0,)))(Transpose((1, 0))(x), x)]


def broadcast_twice(x, s):
    """One row, broadcast twice in the program."""
    return [Mul()(Mul()(x, rows_of(s)), rows_of(s))]


def shifted(x, s):
    """Moves along a dim that may be sharded: their results are saved and not recomputed."""
    first, rest = Slice((0, 0), (2, 4), (1, 1))(x), Slice((2, 0), (5, 4), (1, 1))(x)
    joined = Concatenate(0)(rest, first)
    return [Mul()(Mul()(joined, x), Mul()(Reverse((0,))(x), rows_of(s)))]


CASES = {
    "scaled": (scaled, ["f64[5,4]", "f64[4]"]),
    "scaled deeper": (scaled_deeper, ["f64[5,4]", "f64[2,2]"]),
    "transposed": (transposed, ["f64[5,4]", "f64[5,5]", "f64[4]", "f64[4]"]),
    "broadcast twice": (broadcast_twice, ["f64[5,4]", "f64[5,4]", "f64[4]"]),
    "shifted": (shifted, ["f64[5,4]"] * 5 + ["f64[4]"]),
}


@pytest.mark.parametrize("case", CASES)
def test_residuals_are_small_and_the_derivative_is_the_same(case):
    body, residuals = CASES[case]
    program = verify(rewrite(case, [parse_type("f64[5,4]"), parse_type("f64[4]")], body))
    forward, linear, nonzero = linearize_program(program, (True, True))
    verify(forward)
    verify(linear)
    count = len(program.outputs)
    assert sorted(map(str, forward.out_types[count:])) == sorted(residuals)
    rng = np.random.default_rng(0)
    x, s, dx, ds = rng.normal(size=(5, 4)), rng.normal(size=4), rng.normal(size=(5, 4)), rng.normal(size=4)
    (*outputs,) = evaluate(forward, [x, s])
    tangents = evaluate(linear, [*outputs[count:], dx, ds])
    both, _ = jvp_program(program, (True, True))
    expected = evaluate(both, [x, s, dx, ds])
    assert all(nonzero)
    for found, wanted in zip([*outputs[:count], *tangents], expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def stacks(program: Program) -> list[str]:
    """Return the types that the first loop of a program stacks."""
    loop = next(equation for equation in program.walk() if isinstance(equation.op, Scan))
    return [str(value.type) for value in loop.outputs[loop.op.carried :]]


def normed(x, scale):
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def test_a_loop_does_not_stack_broadcasts():
    def loss(scales, x):
        return lax.scan(lambda x, scale: (normed(x, scale), None), x, scales)[0].sum()

    scales, x = np.linspace(0.5, 1.5, 3 * 8, dtype=np.float32).reshape(3, 8), np.ones((4, 8), np.float32)
    request, _ = sw.jit(sw.grad(loss, argnums=(0, 1))).request((scales, x), {})
    program = request.program
    # The input of each layer and the sums of its squares; not broadcasts, nor scales, which are inputs.
    assert sorted(stacks(program)) == ["f32[3,4,1]", "f32[3,4,8]"]


def test_gradients_through_a_loop_equal_those_of_unrolled_layers():
    scales = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    x = np.random.default_rng(1).normal(size=(4, 8)).astype(np.float32)

    def looped(scales, x):
        return (lax.scan(lambda x, scale: (normed(x, scale), None), x, scales)[0] ** 2).sum()

    def unrolled(scales, x):
        for scale in scales:
            x = normed(x, scale)
        return (x**2).sum()

    found, expected = (sw.jit(sw.grad(f, argnums=(0, 1)))(scales, x) for f in (looped, unrolled))
    for ours, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-5)


def feed_forward(activation):
    """Return the loss of layers in a loop: a product, an activation function, a product."""

    def layer(x, weights):
        up, down = weights
        return x + activation(x @ up) @ down, None

    return lambda weights, x: (lax.scan(layer, x, weights)[0] ** 2).sum()


def layer_weights(layers=3, width=4, hidden=16):
    rng = np.random.default_rng(0)
    shapes = (layers, width, hidden), (layers, hidden, width)
    return tuple((rng.normal(size=shape) / 4).astype(np.float32) for shape in shapes)


ACTIVATIONS = {
    "gelu": nn.gelu,
    "exact gelu": lambda x: nn.gelu(x, approximate=False),
    "silu": nn.silu,
    "softplus": nn.softplus,
    "mish": nn.mish,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_loop_stacks_the_operands_of_products_and_the_input_of_an_activation(name):
    weights, x = layer_weights(), np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    loss = feed_forward(ACTIVATIONS[name])
    request, _ = sw.jit(sw.grad(loss)).request((weights, x), {})
    assert sorted(stacks(request.program)) == ["f32[3,5,16]", "f32[3,5,16]", "f32[3,5,4]"]

    def unrolled(weights, x):
        for up, down in zip(*weights, strict=True):
            x = x + ACTIVATIONS[name](x @ up) @ down
        return (x**2).sum()

    found, expected = sw.jit(sw.grad(loss))(weights, x), sw.jit(sw.grad(unrolled))(weights, x)
    for ours, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-5)


def test_a_mask_is_stacked_instead_of_the_larger_value_that_it_depends_on():
    request, _ = sw.jit(sw.grad(feed_forward(nn.relu))).request((layer_weights(), np.ones((5, 4), np.float32)), {})
    assert sorted(stacks(request.program)) == ["bool[3,5,16]", "f32[3,5,16]", "f32[3,5,4]"]


def test_a_policy_saves_named_values_inside_a_loop():
    """The product that has a name is saved, so the backward pass repeats no product."""

    def products(policy):
        def activation(x):
            return nn.gelu(checkpoint_name(x, "saved"))

        loss = sw.checkpoint(feed_forward(activation), policy=policy)
        request, _ = sw.jit(sw.grad(loss)).request((layer_weights(), np.ones((5, 4), np.float32)), {})
        return sum(isinstance(equation.op, Dot) for equation in request.program.walk())

    policies = sw.checkpoint_policies
    forward, backward = 2, 4
    assert products(policies.save_only_these_names("saved")) == forward + backward + 1  # the next layer's input
    assert products(policies.everything_saveable) == forward + backward
    assert products(policies.nothing_saveable) == forward + backward + 2


def test_second_derivatives_through_a_loop():
    weights, x = layer_weights(layers=2), np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    loss = feed_forward(nn.silu)

    def unrolled(weights, x):
        for up, down in zip(*weights, strict=True):
            x = x + nn.silu(x @ up) @ down
        return (x**2).sum()

    def curvature(loss):
        return sw.jit(sw.grad(lambda x: (sw.grad(loss, argnums=1)(weights, x) ** 2).sum()))(x)

    np.testing.assert_allclose(curvature(loss), curvature(unrolled), rtol=1e-4, atol=1e-4)
