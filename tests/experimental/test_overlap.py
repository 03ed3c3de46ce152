"""program_order: barriers between kernels, started collectives, blocks, derivatives, errors."""

import re
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.experimental.overlap import program_order
from shardwise.sharding import PartitionSpec as P

X = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32) / 4
OPS = r'(%\d+)(?::\d+)? = "stablehlo\.(\w+)"\(([^)]*)\)'
KERNELS = ("dot_general", "reduce_scatter", "all_reduce", "while")


def module(function, *args):
    """Return the ops of a lowered function by the name of their result: the op, and the names of its operands."""
    text = sw.jit(function).lower(*args).as_text()
    return {name: (op, re.findall(r"%\w+", operands)) for name, op, operands in re.findall(OPS, text)}


def depends(ops, name, other):
    """Return whether a value depends on another one."""
    return name == other or (name in ops and any(depends(ops, operand, other) for operand in ops[name][1]))


def kernels(ops):
    return [name for name, (op, _) in ops.items() if op in KERNELS]


def mapped(mesh, function):
    return sw.shard_map(function, mesh=mesh, in_specs=P("data"), out_specs=P("data"))


def products(x, y):
    return x @ x.T, jnp.sin(y @ y.T) * 2, (x + y) @ x.T


def test_each_kernel_depends_on_the_one_before():
    ops = module(products, X, X)
    assert not any(depends(ops, name, other) for name in kernels(ops) for other in kernels(ops) if name != other)
    ordered = module(program_order(products, enforce=True), X, X)
    first, second, third = kernels(ordered)
    assert depends(ordered, second, first) and depends(ordered, third, second)
    sines = [name for name, (op, _) in ordered.items() if op == "sine"]
    assert ordered[sines[0]][1] == [second]  # XLA can fuse it
    for ours, plain in zip(program_order(products, enforce=True)(X, X), products(X, X), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-6, atol=1e-7)  # sums of products cancel


def test_a_started_collective_runs_beside_the_kernels_up_to_its_result(mesh):
    def function(x):
        future = lax.psum_scatter_start(jnp.sin(x), "data", tiled=True)
        product = x @ x.T
        return future.done() + jnp.exp(product).sum(), (product @ x)[:1]

    both = partial(sw.shard_map, mesh=mesh, in_specs=P("data"), out_specs=(P("data"), P("data")))
    ordered = both(program_order(function, enforce=True))
    ops = module(ordered, X)
    scatter, first, second = kernels(ops)
    sine = next(name for name, (op, _) in ops.items() if op == "sine")
    assert depends(ops, first, sine) and not depends(ops, first, scatter)  # it starts before, and may end later
    assert depends(ops, second, first) and depends(ops, second, scatter)  # it runs after `done`
    for ours, plain in zip(sw.jit(ordered)(X), both(function)(X), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-5)


def test_kernels_after_a_start_wait_for_its_operand_although_only_the_collective_reads_it(mesh):
    def function(x):
        future = lax.psum_scatter_start(x @ x.T, "data", tiled=True)
        return (2 * x) @ x.T, future.done()

    both = partial(sw.shard_map, mesh=mesh, in_specs=P("data"), out_specs=(P("data"), P("data")))
    ops = module(both(program_order(function, enforce=True)), X)
    operand, scatter, product = kernels(ops)
    assert depends(ops, scatter, operand) and depends(ops, product, operand) and not depends(ops, product, scatter)


def test_a_collective_that_is_not_started_separately_delays_the_next_kernel(mesh):
    def function(x):
        return lax.psum_scatter(x, "data", tiled=True) + (x @ x.T).sum()

    ops = module(mapped(mesh, program_order(function, enforce=True)), X)
    scatter, product = kernels(ops)
    assert depends(ops, product, scatter)


def test_blocks_are_one_kernel_and_excluded_arguments_are_used_early():
    def step(x, w, excluded):
        block = program_order(lambda y, w: (y @ (w @ w), w @ w.T), enforce=False, exclude_argnames=excluded)
        return program_order(lambda x: (x @ x, *block(x, w)), enforce=True)(x)

    square = np.float32(np.eye(4))
    ops = module(partial(step, excluded=None), square, square)
    first, *inner = kernels(ops)
    assert all(depends(ops, name, first) for name in inner)
    assert not depends(ops, inner[2], inner[0])  # XLA orders the ops of the block
    ops = module(partial(step, excluded=("w",)), square, square)
    first, gathered, product, _ = kernels(ops)
    assert not depends(ops, gathered, first) and depends(ops, product, first)


def test_strict_arguments_and_results():
    def function(x, y):
        return jnp.sin(x), jnp.cos(y)

    def barriers(strict):
        ops = module(program_order(function, enforce=True, strict_in_out=strict), X, X)
        return [operands for op, operands in ops.values() if op == "optimization_barrier"]

    assert barriers(False) == []
    assert barriers((True, False)) == [["%arg0", "%arg1"]]
    assert len(barriers((False, True))) == 1 and len(barriers(True)) == 2


def test_derivatives_and_batches_have_an_order():
    def loss(x):
        return sum(jnp.tanh(each).sum() for each in products(x, 2 * x))

    ordered = program_order(loss, enforce=True)
    np.testing.assert_allclose(sw.jit(sw.grad(ordered))(X), sw.grad(loss)(X), rtol=1e-5)
    np.testing.assert_allclose(sw.jvp(ordered, (X,), (X,))[1], sw.jvp(loss, (X,), (X,))[1], rtol=1e-5)
    np.testing.assert_allclose(sw.vmap(ordered)(np.stack([X, X]))[0], loss(X), rtol=1e-5)
    ops = module(sw.grad(ordered), X)
    names = kernels(ops)
    backward = names[3:]
    assert len(backward) >= 4
    assert all(depends(ops, later, earlier) for earlier, later in pairwise(backward))


def test_plain_sharded_programs(mesh):
    x = sw.device_put(X, sw.NamedSharding(mesh, P("data", "model")))
    ordered = sw.jit(program_order(products, enforce=True))
    for ours, plain in zip(ordered(x, x), products(X, X), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-5)


def test_refs_loops_and_captured_values():
    captured, ref = jnp.ones((4, 4)), sw.new_ref(jnp.zeros(()))

    @program_order(enforce=True)
    def function(x):
        x, _ = lax.scan(lambda x, _: (x @ captured, None), x, None, length=2)
        ref[...] += 1
        return x @ captured

    np.testing.assert_allclose(sw.jit(function)(X), X @ np.ones((4, 4)) * 16, rtol=1e-5)
    assert ref[...] == 1


def test_errors():
    with pytest.raises(TypeError, match="enforce"):
        program_order(products)
    with pytest.raises(ValueError, match="exclude_argnames needs enforce=False"):
        program_order(products, enforce=True, exclude_argnames="x")
    with pytest.raises(ValueError, match="strict_in_out needs enforce=True"):
        program_order(products, enforce=False, strict_in_out=True)
    with pytest.raises(ValueError, match=r"exclude_argnames of `products`.* has 'z'"):
        program_order(products, enforce=False, exclude_argnames="z")
    with pytest.raises(TypeError, match="program_order"):
        program_order(3, enforce=True)
