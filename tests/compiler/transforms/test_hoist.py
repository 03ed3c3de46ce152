"""hoist moves loop-invariant conversions to a smaller dtype out of loops, and the program computes the same."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.verify import verify
from shardwise.compiler.ops.elementwise.identities import Barrier
from shardwise.compiler.transforms.dce import dce
from shardwise.compiler.transforms.hoist import hoist, hoist_as_xla, hoist_from_slices
from shardwise.compiler.transforms.inline import inline
from shardwise.sharding import AbstractMesh, NamedSharding
from shardwise.sharding import PartitionSpec as P

RNG = np.random.default_rng(0)
W, XS = RNG.normal(size=(4, 4)).astype(np.float32), RNG.normal(size=(3, 2, 4)).astype(np.float16)


def programs(function, *args):
    """Return a function's program before and after hoisting, and check that both compute the same."""
    before = dce(inline(sw.jit(function).trace(*args).program))
    after = dce(verify(hoist(before)))
    for a, b in zip(evaluate(before, args), evaluate(after, args), strict=True):
        np.testing.assert_array_equal(a, b)
    return before, after


def names(program):
    """Return the names of the ops outside of loops, and inside."""
    inner = [equation.op.name for equation in program.walk() if equation not in program.equations]
    return [equation.op.name for equation in program.equations], inner


def narrow_steps(w, xs):
    return lax.scan(lambda c, x: (jnp.tanh(c + x @ w.astype(np.float16)), None), xs[0], xs)[0]


def test_a_weight_is_converted_once_before_the_loop():
    before, after = programs(narrow_steps, W, XS)
    assert "convert" not in names(before)[0] and "convert" in names(before)[1]
    outside, inside = names(after)
    assert "convert" in outside and "convert" not in inside
    (loop,) = [equation for equation in after.equations if equation.op.name == "scan"]
    assert W.shape in [value.type.shape for value in loop.inputs]
    # The f32 weight is no operand of the loop any more.
    assert all(value.type.dtype == np.float16 for value in loop.inputs)


def test_the_ops_that_a_conversion_depends_on_are_hoisted():
    def scaled(w, xs):
        return lax.scan(lambda c, x: (c + x @ (2 * w.T).astype(np.float16), None), xs[0], xs)[0]

    outside, inside = names(programs(scaled, W, XS)[1])
    assert outside.index("transpose") < outside.index("convert")
    assert not {"transpose", "convert", "mul"} & set(inside)


def test_a_conversion_is_hoisted_out_of_nested_loops():
    def nested(w, xs):
        return lax.scan(lambda c, x: (narrow_steps(w, xs + c), None), xs[0], xs)[0]

    outside, inside = names(programs(nested, W, XS)[1])
    assert outside.count("convert") == 1 and "convert" not in inside


NOT_HOISTED = {
    "a carry": (lambda w, xs: lax.scan(lambda w, x: (w + 1, x @ w.astype(np.float16)), w, xs), W),
    "conversion to a larger dtype": (
        lambda w, xs: lax.scan(lambda c, x: (c + x.astype(np.float32) @ w.astype(np.float32), None), xs[0] * 1.0, xs),
        W.astype(np.float16),
    ),
    "one iteration": (lambda w, xs: narrow_steps(w, xs[:1]), W),
    "behind a barrier": (
        lambda w, xs: lax.scan(lambda c, x: (c + x @ Barrier()(w).astype(np.float16), None), xs[0], xs),
        W,
    ),
}


@pytest.mark.parametrize("name", NOT_HOISTED)
def test_other_conversions_stay_inside(name):
    function, w = NOT_HOISTED[name]
    xs = XS.astype(np.float32) if name == "conversion to a larger dtype" else XS
    before, after = programs(function, w, xs)
    assert names(after) == names(before)


def test_a_program_without_loops_is_returned():
    program = inline(sw.jit(lambda w: w.astype(np.float16) * 2).trace(W).program)
    assert hoist(program) is program


def test_weights_are_gathered_in_the_smaller_dtype():
    """Microbatches under FSDP: weights are gathered as bf16, once, before the loop."""
    mesh = AbstractMesh((8,), ("data",))

    def shaped(shape, spec, dtype):
        return sw.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    def loss(w, xs):
        def add(total, x):
            return total + jnp.mean(jnp.tanh(x @ w.astype(jnp.bfloat16)).astype(np.float32)), None

        return lax.scan(add, 0.0, xs)[0]

    args = shaped((512, 512), P("data"), np.float32), shaped((4, 8192, 512), P(None, "data"), jnp.bfloat16)
    plan = sw.jit(sw.grad(loss)).lower(*args).plan
    (gather,) = [row for row in plan.collectives if row.kind == "all_gather"]
    assert (gather.type, gather.times) == ("bf16[64,512]", 1)


def layers(weights, x):
    """Apply scanned layers that compute in float16, and also return the converted weights, stacked again."""

    def layer(x, w):
        narrow = w.astype(np.float16)
        return jnp.tanh(x @ narrow), narrow

    return lax.scan(layer, x, weights)


def microbatches(weights, xs):
    def add(total, x):
        last, narrow = layers(weights, x)
        backward, _ = lax.scan(lambda y, w: (y @ w.astype(np.float16), None), last, weights, reverse=True)
        return total + backward.max() + narrow.max(), None

    return lax.scan(add, jnp.float16(0), xs)[0]


STACKS = RNG.normal(size=(5, 4, 4)).astype(np.float32)


def hoisted_from_slices(function, *args):
    """Return a function's program with the conversions of slices of its first input hoisted."""
    before = dce(inline(sw.jit(function).trace(*args).program))
    after = dce(verify(hoist_from_slices(before, {before.inputs[0]})))
    for a, b in zip(evaluate(before, args), evaluate(after, args), strict=True):
        np.testing.assert_array_equal(a, b)
    return after


def test_stacks_are_converted_once_before_nested_loops():
    outside, inside = names(hoisted_from_slices(microbatches, STACKS, XS))
    assert outside.count("convert") == 1 and "convert" not in inside


def test_a_stack_of_converted_slices_is_the_converted_stack():
    after = hoisted_from_slices(microbatches, STACKS, XS)
    (outer,) = [equation for equation in after.equations if equation.op.name == "scan"]
    forward, *_ = [equation for equation in outer.op.programs[0].equations if equation.op.name == "scan"]
    assert len(forward.outputs) == 1


def test_slices_of_a_single_loop_are_converted_there():
    before = dce(inline(sw.jit(layers).trace(STACKS, XS[0]).program))
    assert hoist_from_slices(before, {before.inputs[0]}) is before


def test_branches_that_read_a_stack_are_kept():
    def branching(weights, xs):
        def add(total, x):
            y = lax.cond(x[0, 0] > 0, lambda w: x @ w[0].astype(np.float16), lambda w: x, weights)
            return total + y.max() + layers(weights, x)[0].max(), None

        return lax.scan(add, jnp.float16(0), xs)[0]

    outside, inside = names(hoisted_from_slices(branching, STACKS, XS))
    assert "cond" in inside and "convert" in outside


def test_other_stacks_are_not_converted():
    before = dce(inline(sw.jit(microbatches).trace(STACKS, XS).program))
    assert hoist_from_slices(before, set()) is before


def test_what_xla_hoists_is_computed_before_the_loop():
    """Broadcasts and constants stay in the loop, unless a hoisted op reads them."""

    def function(w, xs):
        def advance(carry, x):
            bias = jnp.sin(w)[0][None] + jnp.ones((2, 4))
            return carry * x + bias + jnp.arange(4) + jnp.exp(carry @ w), None

        return lax.scan(advance, xs[0], xs)[0]

    args = W, XS.astype(np.float32)
    before = dce(inline(sw.jit(function).trace(*args).program))
    after = dce(verify(hoist_as_xla(before)))
    for actual, expected in zip(evaluate(after, args), evaluate(before, args), strict=True):
        np.testing.assert_array_equal(actual, expected)
    outside, inside = names(after)
    assert {"sin", "broadcast", "add", "convert"} <= set(outside) and "exp" not in outside
    assert {"sin"}.isdisjoint(inside) and {"exp", "dot", "mul"} <= set(inside)
    assert dce(hoist_as_xla(after)).equations == after.equations
