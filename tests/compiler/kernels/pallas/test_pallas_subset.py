"""Which kernels of Pallas are compiled: values at the borders of the subset, and why others are interpreted."""

import ml_dtypes
import numpy as np
import pytest

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import NamedSharding, P, lax
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.pallas.pallas_kernel import translation
from shardwise.compiler.trace.build import build
from shardwise.experimental import pallas as pl
from shardwise.experimental.pallas import tpu, triton
from tests.compiler.kernels.run_kernel import races, run_on_triton

F32, I32 = np.dtype(np.float32), np.dtype(np.int32)
BLOCK = pl.BlockSpec((4,), lambda i: (i,))
BLOCKS = {"grid": (4,), "in_specs": [BLOCK], "out_specs": BLOCK}
ALIAS = {"input_output_aliases": {0: 0}}


def floats(*shape):
    return np.arange(np.prod(shape), dtype=F32).reshape(shape)


def pallas(kernel, result, **options):
    return pl.pallas_call(kernel, jax.ShapeDtypeStruct(result.shape, result.dtype), **options)


def ops(function, *arrays):
    types = [ArrayType(x.shape, x.dtype) for x in arrays]
    program, _ = build(lambda *xs: jax.tree.leaves(function(*xs)), types, "test")
    return [equation.op for equation in program.walk() if equation.op.name in ("pallas_call", "interpreted_kernel")]


def check(kernel, result, *arrays, for_triton=True, **options):
    """Compare the Triton IR of a kernel with its interpreted form."""
    parameters = {"compiler_params": triton.CompilerParams()} if for_triton else {}
    (actual,) = run_on_triton(pallas(kernel, result, **parameters, **options), *arrays)
    expected = pallas(kernel, result, interpret=True, **options)(*map(jnp.asarray, arrays))
    np.testing.assert_allclose(actual.astype(np.float64), np.asarray(expected, np.float64), rtol=1e-5)


def elementwise(function):
    def kernel(x_ref, out_ref):
        out_ref[...] = function(x_ref[...]).astype(out_ref.dtype)

    return kernel


@pytest.mark.parametrize("low", [-2, -6, 0, 3, 7])
def test_traced_indices_wrap_and_are_moved_into_bounds(low):
    def kernel(x_ref, start_ref, out_ref):
        out_ref[:4] = x_ref[pl.ds(start_ref[0], 4)]
        out_ref[4:] = jnp.full((4,), x_ref[start_ref[0]])

    check(kernel, floats(8), floats(8), np.array([low], I32))


def test_negative_indices_in_arrays_wrap():
    def kernel(x_ref, index_ref, out_ref):
        out_ref[...] = x_ref[index_ref[...]]

    check(kernel, floats(4), floats(8), np.array([-2, 3, -8, 0], I32))


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint8, np.uint32])
@pytest.mark.parametrize("function", [lax.div, lax.rem], ids=["div", "rem"])
def test_divisions_by_zero_are_those_of_xla(function, dtype):
    def kernel(x_ref, y_ref, out_ref):
        out_ref[...] = function(x_ref[...], y_ref[...])

    limits = np.iinfo(dtype)
    x, y = np.meshgrid(np.array([limits.min, limits.max, 0, 7], dtype), np.array([0, limits.max, 1, 3], dtype))
    y[1] = limits.max if dtype().dtype.kind == "u" else -1
    check(kernel, x, x, y)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.bool_])
def test_floats_saturate_as_integers(dtype):
    x = np.array([-np.inf, -1e12, -300, -1.5, 0.5, 255.5, 1e12, np.inf], F32)
    result = np.zeros(8, dtype)
    check(elementwise(lambda x: x), result, x)
    check(elementwise(lambda x: x / x), result, np.zeros(8, F32))  # NaN


def test_booleans_become_float8():
    e4m3 = np.dtype(ml_dtypes.float8_e4m3fn)
    check(elementwise(lambda x: (x > 3).astype(e4m3)), np.zeros(8, e4m3), floats(8))


def test_integers_wrap_before_they_are_indices():
    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[(jnp.arange(8, dtype=jnp.int8) + jnp.int8(125)).astype(jnp.int32)]

    check(kernel, floats(8), floats(256))


def test_carries_that_overflow():
    def kernel(x_ref, out_ref):
        def body(carry, _):
            return (carry[0] + jnp.uint8(1), carry[1] + carry[0].astype(jnp.float32)), None

        (count, total), _ = lax.scan(body, (jnp.uint8(250), jnp.float32(0)), None, length=10)
        out_ref[...] = x_ref[...] + total + count.astype(jnp.float32)

    check(kernel, floats(8), floats(8))


@pytest.mark.parametrize("stop", [0, 3, 7])
def test_while_loops_whose_bound_is_not_above_the_start(stop):
    def kernel(x_ref, stop_ref, out_ref):
        count, power = lax.while_loop(lambda c: c[0] < stop_ref[0], lambda c: (c[0] + 1, c[1] * 2), (3, 1))
        out_ref[...] = x_ref[...] * power + count

    check(kernel, floats(8), floats(8), np.array([stop], I32))


@pytest.mark.parametrize("first", [-1, 0, 1, 5])
def test_indices_of_branches_are_moved_into_bounds(first):
    def kernel(x_ref, index_ref, out_ref):
        branches = [lambda x: x + 1, lambda x: x * 10, lambda x: -x]
        out_ref[...] = lax.switch(index_ref[0], branches, x_ref[...])

    check(kernel, floats(8), floats(8), np.array([first], I32))


@pytest.mark.parametrize(
    "shapes", [((5, 19), (19, 7)), ((50, 19), (19, 33)), ((50, 19), (19,)), ((19,), (19,))], ids=str
)
def test_products_of_odd_sizes(shapes):
    def kernel(x_ref, y_ref, out_ref):
        out_ref[...] = x_ref[...] @ y_ref[...]

    x, y = (np.random.default_rng(0).integers(-3, 4, shape).astype(F32) for shape in shapes)
    check(kernel, x @ y, x, y)


def test_products_of_bytes_are_at_least_32_long():
    def kernel(x_ref, y_ref, out_ref):
        out_ref[...] = jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.int32)

    for inner, has_dot in ((16, False), (32, True)):
        x, y = np.ones((16, inner), np.int8), np.full((inner, 16), -2, np.int8)
        check(kernel, np.zeros((16, 16), I32), x, y)
        (op,) = ops(pallas(kernel, np.zeros((16, 16), I32), compiler_params=triton.CompilerParams()), x, y)
        assert ("tt.dot" in translation(op).module) == has_dot


@pytest.mark.parametrize("for_triton", [True, False])
def test_the_last_block_may_exceed_its_array(for_triton):
    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...] + pl.program_id(0)

    check(kernel, floats(13), floats(13), for_triton=for_triton, **BLOCKS)


def test_an_operand_keeps_its_values_if_a_result_starts_with_them():
    def reverse(x_ref, out_ref):
        out_ref[...] = x_ref[7 - jnp.arange(8)]

    def read_again(x_ref, out_ref):
        out_ref[...] = 2 * x_ref[...]
        out_ref[...] = 3 * x_ref[...]

    def double(x_ref, out_ref):
        out_ref[...] = 2 * x_ref[...]

    def scale(x_ref, out_ref):  # all threads read the element that one of them overwrites
        out_ref[...] = x_ref[...] * x_ref[0]

    for kernel, size, copied in ((reverse, 8, (0,)), (read_again, 8, (0,)), (scale, 1, (0,)), (double, 1024, ())):
        x = floats(size)
        check(kernel, x, x, **ALIAS)
        (op,) = ops(pallas(kernel, x, compiler_params=triton.CompilerParams(), **ALIAS), x)
        assert translation(op).repeated == copied
    check(double, floats(16), floats(16), for_triton=False, **BLOCKS, **ALIAS)


def test_stores_to_disjoint_parts():
    def halves(x_ref, out_ref):
        out_ref[:4], out_ref[4:] = 2 * x_ref[4:], x_ref[:4]

    def strides(x_ref, out_ref):
        out_ref[::2], out_ref[1::2] = 2 * x_ref[1::2], x_ref[::2]

    for kernel in (halves, strides):
        check(kernel, floats(8), floats(8), for_triton=False)


def in_loops(start, *lengths):
    """A kernel that stores 4 elements from `start(*counters)` in nested loops."""

    def kernel(x_ref, out_ref):
        def run(*counters):
            if len(counters) < len(lengths):
                lax.fori_loop(0, lengths[len(counters)], lambda i, _: run(*counters, i), None)
            else:
                first = start(*counters)
                out_ref[pl.ds(first, 4)] = x_ref[pl.ds(first, 4)] + sum(counters)

        run()

    return kernel


def when_first(x_ref, out_ref):
    @pl.loop(0, 4)
    def _(i):
        @pl.when(i == 1)
        def _():
            out_ref[pl.ds(4 * (i % 2), 4)] = x_ref[:4]


# The kernel, and whether threads store the same elements in an order that nothing determines.
LOOPS = {
    "apart": (in_loops(lambda i: 4 * i, 4), False),
    "backwards": (in_loops(lambda i: 12 - 4 * i, 4), False),
    "with gaps": (in_loops(lambda i: 6 * i, 3), False),
    "the same": (in_loops(lambda i: 4, 4), False),
    "one iteration": (in_loops(lambda i: 4 * i, 1), False),
    "two loops": (in_loops(lambda i, j: 8 * i + 4 * j, 2, 2), False),
    "the outer one last": (in_loops(lambda i, j: 4 * i + 8 * j, 2, 2), False),
    "in one iteration": (when_first, False),
    "overlapping": (in_loops(lambda i: 2 * i, 4), True),
    "overlapping in the inner one": (in_loops(lambda i, j: 8 * i + j, 2, 4), True),
    "overlapping in the outer one": (in_loops(lambda i, j: 2 * i + 4 * j, 4, 2), True),
    "wrapped": (in_loops(lambda i: 4 * i % 6, 4), True),
}


@pytest.mark.parametrize("name", LOOPS)
def test_stores_in_loops(name):
    kernel, is_racy = LOOPS[name]
    x = floats(16)
    (op,) = ops(pallas(kernel, x, compiler_params=triton.CompilerParams()), x)
    assert bool(races(op, x)) == is_racy
    (op,) = ops(pallas(kernel, x), x)
    if is_racy:
        assert "a step writes elements twice, in several iterations of a loop, of result 0" in op.reason
    else:
        assert op.name == "pallas_call"


def write_operand(x_ref, out_ref):
    x_ref[...] = x_ref[...] * 2
    out_ref[...] = x_ref[...]


def write_twice(x_ref, out_ref):
    out_ref[...] = jnp.zeros_like(x_ref)
    out_ref[1:3] = x_ref[1:3]


def read_after_write(x_ref, out_ref):
    out_ref[...] = x_ref[...]
    out_ref[...] += x_ref[...]


def shift(x_ref, out_ref):
    out_ref[1:] = out_ref[:-1] + x_ref[1:]


def read_scalar_after_write(x_ref, out_ref):
    out_ref[0] = x_ref[0]
    out_ref[1:] = x_ref[1:] * out_ref[0]


def accumulate(x_ref, out_ref):
    out_ref[...] += jnp.sum(x_ref[...], keepdims=True)


def except_first(x_ref, out_ref):
    @pl.when(pl.program_id(0) != 0)
    def _():
        out_ref[...] = jnp.sum(x_ref[...], keepdims=True)


def with_barrier(x_ref, out_ref):
    triton.debug_barrier()
    out_ref[...] = x_ref[...]


def with_random_numbers(x_ref, out_ref):
    tpu.prng_seed(0)
    out_ref[...] = x_ref[...] + tpu.prng_random_bits(x_ref.shape).astype(jnp.float32)


def with_missing_attribute(x_ref, out_ref):
    out_ref[...] = x_ref.value if hasattr(x_ref, "token") else x_ref[...]


ONE = {**BLOCKS, "out_specs": pl.BlockSpec((1,), lambda i: (0,))}
OUTSIDE = {
    "write_operand": (write_operand, {}, "the kernel writes to operand 0"),
    "write_twice": (write_twice, {}, "a step writes elements twice of result 0"),
    "read_after_write": (read_after_write, {}, "a step reads elements after it writes them of result 0"),
    "shift": (shift, ALIAS, "a step reads elements before other threads write them of result 0"),
    "read_scalar": (read_scalar_after_write, {}, "a step reads elements after it writes them of result 0"),
    "accumulate": (accumulate, ONE, "steps along axis 0 of the grid may write the same elements of result 0; pass"),
    "except_first": (except_first, ONE, "steps along axis 0 of the grid may write the same elements"),
    "barrier": (with_barrier, {}, "it has a debug_barrier"),
    "random": (with_random_numbers, {}, "it draws random numbers"),
    "attribute": (with_missing_attribute, {}, "its Refs are used in a way that is not supported"),
    "op": (elementwise(jnp.cumsum), {}, r"the op cumulative \(test_pallas_subset.py:"),
    "dtype": (elementwise(lambda x: (x + 1j).real), {}, "a value of type c64"),
    "reshape": (elementwise(lambda x: x + jnp.arange(12.0).reshape(3, 4).max()), {}, r"a reshape from \(12,\) to"),
    "scratch": (
        lambda x_ref, out_ref, scratch: None,
        {"scratch_shapes": [tpu.VMEM((2,), F32)]},
        "it has scratch buffers",
    ),
    "interpret": (accumulate, {"interpret": True}, "interpret=True"),
    "parameters": (accumulate, {"compiler_params": tpu.CompilerParams()}, "its compiler_params are TpuCompilerParams"),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_explain_says_why_a_kernel_is_interpreted(name):
    kernel, options, reason = OUTSIDE[name]
    result = floats(1) if "out_specs" in options else floats(16)
    function = pallas(kernel, result, **options, name="mine")
    (op,) = ops(function, floats(16))
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(op.reason)
    text = str(jax.explain(function, hardware="h100", advise=False)(jax.ShapeDtypeStruct((16,), F32)))
    assert text.count(f"is computed by plain ops: {op.reason}") == 1 and "mine at test_pallas_subset.py:" in text


@pytest.mark.parametrize("name", ["num_warps", "num_stages"])
@pytest.mark.parametrize("value", [0, -1, 64, 2.5, "4"])
def test_wrong_parameters_are_errors(name, value):
    with pytest.raises(ValueError, match=f"CompilerParams: {name} must be"):
        triton.CompilerParams(**{name: value})


def add(x_ref, y_ref, out_ref):
    out_ref[...] = x_ref[...] + y_ref[...]


def test_a_kernel_is_one_op_of_a_gpu_module():
    block = pl.BlockSpec((4,), lambda i: (i,))
    run = pl.pallas_call(add, jnp.zeros(16), grid=(4,), in_specs=[block, block], out_specs=block, name="add")
    types = [jax.ShapeDtypeStruct((16,), F32)] * 2
    text = jax.jit(run).trace(*types).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("__gpu$xla.gpu.triton") == 1
    assert "own kernels: 1 add" in str(jax.explain(run, hardware="h100", advise=False)(*types))


def test_gradients_and_shards_of_a_kernel():
    block = pl.BlockSpec((4,), lambda i: (i,))
    run = pl.pallas_call(add, jnp.zeros(16), grid=(4,), in_specs=[block, block], out_specs=block)
    x, y = floats(16), floats(16) - 3
    grads = jax.grad(lambda x, y: jnp.sum(run(x, y) ** 2), (0, 1))(x, y)
    np.testing.assert_allclose(grads, [2 * (x + y)] * 2)
    mesh = jax.make_mesh((2,), ("rows",))
    batched = jax.jit(jax.vmap(run, (0, None)), in_shardings=NamedSharding(mesh, P("rows")))
    np.testing.assert_allclose(batched(np.stack([x] * 6), y), np.stack([x + y] * 6))
    manual = jax.shard_map(jax.vmap(run), mesh=mesh, in_specs=(P("rows"), P("rows")), out_specs=P("rows"))
    assert [op.name for op in ops(manual, np.stack([x] * 6), np.stack([y] * 6))] == ["pallas_call"]
    np.testing.assert_allclose(jax.jit(manual)(np.stack([x] * 6), np.stack([y] * 6)), np.stack([x + y] * 6))
