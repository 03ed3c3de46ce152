"""Conversions that narrow what does not change stand before a loop; the program means the same."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.verify import verify
from shardwise.compiler.ops.control.remat import Barrier
from shardwise.compiler.transforms.dce import dce
from shardwise.compiler.transforms.hoist import hoist
from shardwise.compiler.transforms.inline import inline
from shardwise.sharding import AbstractMesh, NamedSharding
from shardwise.sharding import PartitionSpec as P

RNG = np.random.default_rng(0)
W, XS = RNG.normal(size=(4, 4)).astype(np.float32), RNG.normal(size=(3, 2, 4)).astype(np.float16)


def programs(function, *args):
    """A function's program, before and after; both give the same on `args`."""
    before = dce(inline(sw.jit(function).trace(*args).jaxpr))
    after = dce(verify(hoist(before)))
    for a, b in zip(evaluate(before, args), evaluate(after, args), strict=True):
        np.testing.assert_array_equal(a, b)
    return before, after


def names(program):
    """The ops outside of loops, and inside."""
    inner = [equation.op.name for equation in program.walk() if equation not in program.equations]
    return [equation.op.name for equation in program.equations], inner


def narrow_steps(w, xs):
    return lax.scan(lambda c, x: (jnp.tanh(c + x @ w.astype(np.float16)), None), xs[0], xs)[0]


def test_a_weight_is_converted_once():
    before, after = programs(narrow_steps, W, XS)
    assert "convert" not in names(before)[0] and "convert" in names(before)[1]
    outside, inside = names(after)
    assert "convert" in outside and "convert" not in inside
    (loop,) = [equation for equation in after.equations if equation.op.name == "scan"]
    assert W.shape in [value.type.shape for value in loop.inputs]
    assert all(value.type.dtype == np.float16 for value in loop.inputs)  # the wide one does not enter any more


def test_and_what_it_takes_to_get_there():
    def scaled(w, xs):
        return lax.scan(lambda c, x: (c + x @ (2 * w.T).astype(np.float16), None), xs[0], xs)[0]

    outside, inside = names(programs(scaled, W, XS)[1])
    assert outside.index("transpose") < outside.index("convert")
    assert not {"transpose", "convert", "mul"} & set(inside)


def test_from_a_loop_in_a_loop_all_the_way():
    def nested(w, xs):
        return lax.scan(lambda c, x: (narrow_steps(w, xs + c), None), xs[0], xs)[0]

    outside, inside = names(programs(nested, W, XS)[1])
    assert outside.count("convert") == 1 and "convert" not in inside


STAY = {
    "it changes": (lambda w, xs: lax.scan(lambda w, x: (w + 1, x @ w.astype(np.float16)), w, xs), W),
    "it grows": (
        lambda w, xs: lax.scan(lambda c, x: (c + x.astype(np.float32) @ w.astype(np.float32), None), xs[0] * 1.0, xs),
        W.astype(np.float16),
    ),
    "one turn": (lambda w, xs: narrow_steps(w, xs[:1]), W),
    "to be computed again": (
        lambda w, xs: lax.scan(lambda c, x: (c + x @ Barrier()(w).astype(np.float16), None), xs[0], xs),
        W,
    ),
}


@pytest.mark.parametrize("name", STAY)
def test_what_stays_inside(name):
    function, w = STAY[name]
    xs = XS.astype(np.float32) if name == "it grows" else XS
    before, after = programs(function, w, xs)
    assert names(after) == names(before)


def test_without_a_loop_it_is_the_same_program():
    program = inline(sw.jit(lambda w: w.astype(np.float16) * 2).trace(W).jaxpr)
    assert hoist(program) is program


def test_half_as_much_is_gathered():
    """Microbatches under FSDP: their weights are gathered before the loop, and narrow."""
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
