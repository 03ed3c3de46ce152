"""Pallas: grids, blocks, scratch, views, copies and masks, compared with numpy; and errors."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.errors import UnsupportedError
from shardwise.experimental import pallas as pl
from shardwise.experimental.pallas import tpu as pltpu
from shardwise.experimental.pallas import triton as plgpu
from shardwise.sharding import PartitionSpec as P


def numbers(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def add(x_ref, y_ref, out_ref):
    out_ref[...] = x_ref[...] + y_ref[...]


def multiply(x_ref, y_ref, out_ref, total_ref):
    @pl.when(pl.program_id(2) == 0)
    def _():
        total_ref[...] = jnp.zeros(total_ref.shape, total_ref.dtype)

    total_ref[...] += x_ref[...] @ y_ref[...]

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _():
        out_ref[...] = total_ref[...].astype(out_ref.dtype)


def matmul(x, y, bm=4, bn=8, bk=4):
    (m, k), (_, n) = x.shape, y.shape
    return pl.pallas_call(
        multiply,
        sw.ShapeDtypeStruct((m, n), x.dtype),
        grid=(m // bm, n // bn, k // bk),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)), pl.BlockSpec((bk, bn), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        interpret=True,
    )(x, y)


@pytest.mark.parametrize("size", [1, 7, 8, 10])
def test_blocks_that_exceed_the_array_are_padded(size):
    x = numbers(size)
    block = pl.BlockSpec((4,), lambda i: (i,))
    run = pl.pallas_call(add, x, grid=(pl.cdiv(size, 4),), in_specs=[block, block], out_specs=block)
    np.testing.assert_array_equal(run(x, x), x + x)


def test_scratch_keeps_its_values_between_steps_under_jit_vmap_and_grad():
    x, y = numbers(8, 12), numbers(12, 16)
    np.testing.assert_allclose(sw.jit(matmul)(x, y), x @ y, rtol=1e-4, atol=1e-5)
    batched = np.stack([x, 2 * x])
    np.testing.assert_allclose(sw.vmap(matmul, (0, None))(batched, y), batched @ y, rtol=1e-4, atol=1e-5)
    gradient = sw.grad(lambda x: (matmul(x, y) ** 2).sum())(x)
    np.testing.assert_allclose(gradient, 2 * (x @ y) @ y.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("check_vma", [True, False])
def test_kernel_in_shard_map(check_vma):
    x, y = numbers(16, 8), numbers(8, 8)
    mesh = sw.make_mesh((2,), ("rows",))
    run = sw.shard_map(matmul, mesh=mesh, in_specs=(P("rows"), P()), out_specs=P("rows"), check_vma=check_vma)
    np.testing.assert_allclose(sw.jit(run)(x, y), x @ y, rtol=1e-4, atol=1e-5)


def scale_twice(x_ref, w_ref, out_ref):
    @pl.when(pl.program_id(0) >= 0)
    def _():
        out_ref[...] = sw.lax.fori_loop(0, 2, lambda _, total: total * w_ref[...], x_ref[...])


def scaled_twice(x, w):
    """Return x * w * w, by a kernel that GPUs compile, whose steps run in a loop elsewhere."""
    block = pl.BlockSpec((2,), lambda i: (i,))
    shared = pl.BlockSpec((2,), lambda i: (0,))
    return pl.pallas_call(scale_twice, x, grid=(x.size // 2,), in_specs=[block, shared], out_specs=block)(x, w)


def per_device(function):
    mesh = sw.make_mesh((2,), ("rows",))
    return sw.shard_map(function, mesh=mesh, in_specs=(P("rows"), P()), out_specs=P("rows"))


@pytest.mark.parametrize(
    "transformed",
    [
        scaled_twice,
        sw.checkpoint(scaled_twice),
        sw.jit(sw.checkpoint(scaled_twice)),
        per_device(scaled_twice),
        per_device(sw.checkpoint(scaled_twice)),
        lambda x, w: sw.vmap(per_device(scaled_twice), (0, None))(x[None], w)[0],
        lambda x, w: per_device(sw.vmap(scaled_twice, (1, None), 1))(x[:, None], w)[:, 0],
    ],
    ids=[
        "plain",
        "checkpoint",
        "jit checkpoint",
        "shard_map",
        "shard_map checkpoint",
        "vmap shard_map",
        "shard_map vmap",
    ],
)
def test_derivatives_of_a_kernel_that_can_be_compiled(transformed):
    x, w = numbers(8), numbers(2)
    tiled = np.tile(w, 4)
    x_ct, w_ct = sw.grad(lambda x, w: transformed(x, w).sum(), (0, 1))(x, w)
    np.testing.assert_allclose(x_ct, tiled**2, rtol=1e-5)
    np.testing.assert_allclose(w_ct, 2 * w * x.reshape(4, 2).sum(0), rtol=1e-5)
    tangent = sw.jvp(transformed, (x, w), (x, w))[1]
    np.testing.assert_allclose(tangent, 3 * x * tiled**2, rtol=1e-5)
    second = sw.hessian(lambda w: transformed(x, w).sum())(w)
    np.testing.assert_allclose(second, np.diag(2 * x.reshape(4, 2).sum(0)), rtol=1e-5, atol=1e-6)


def test_grids_of_several_axes_with_x64():
    x = numbers(8, 12).astype(np.float64)
    with sw.enable_x64(True):
        block = pl.BlockSpec((4, 4), lambda i, j: (i, j))
        run = pl.pallas_call(
            add, sw.ShapeDtypeStruct(x.shape, x.dtype), grid=(2, 3), in_specs=[block] * 2, out_specs=block
        )
        total = run(x, x / 3)
        assert total.dtype == np.float64
        np.testing.assert_array_equal(total, x + x / 3)


def test_kernel_has_its_name_in_programs():
    assert "in multiply" in str(sw.make_jaxpr(matmul)(numbers(8, 8), numbers(8, 8)))


def test_scalar_prefetch_and_squeezed_dims():
    def kernel(rows_ref, x_ref, out_ref):
        out_ref[...] = x_ref[...] * rows_ref[pl.program_id(0)]

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(3,),
        in_specs=[pl.BlockSpec((None, 5), lambda i, rows: (rows[i], 0))],
        out_specs=pl.BlockSpec((None, 5), lambda i, rows: (i, 0)),
    )
    x, rows = numbers(4, 5), np.array([3, 0, 2], np.int32)
    out = pl.pallas_call(kernel, sw.ShapeDtypeStruct((3, 5), jnp.float32), grid_spec=spec)(rows, x)
    np.testing.assert_allclose(out, x[rows] * rows[:, None])


def test_traced_grid_and_aliases():
    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...] + 1

    @sw.jit
    def run(x, count):
        block = pl.BlockSpec((2,), lambda i: (i,))
        call = pl.pallas_call(
            kernel, x, grid=(count,), in_specs=[block], out_specs=block, input_output_aliases={0: 0}, name="increment"
        )
        return call(x)

    np.testing.assert_array_equal(run(np.zeros(6, np.float32), 2), [1, 1, 1, 1, 0, 0])


def test_element_and_bounded_dims_start_at_elements():
    def kernel(x_ref, y_ref, out_ref):
        out_ref[...] = (x_ref[...].sum() + y_ref[...].sum())[None]

    x = numbers(8)
    specs = [
        pl.BlockSpec((pl.Element(3),), lambda i: (i,)),
        pl.BlockSpec((pl.BoundedSlice(2),), lambda i: (pl.ds(i + 1, 2),)),
    ]
    out = pl.pallas_call(kernel, sw.ShapeDtypeStruct((5,), jnp.float32), grid=(5,), in_specs=specs,
                         out_specs=pl.BlockSpec((1,), lambda i: (i,)))(x, x)  # fmt: skip
    expected = [x[i : i + 3].sum() + x[i + 1 : i + 3].sum() for i in range(5)]
    np.testing.assert_allclose(out, expected, rtol=1e-5)


def test_operands_and_results_are_pytrees_and_scratch_has_names():
    def kernel(pair, out, *, total):
        total[...] = pair["a"][...] + pair["b"][...]
        out["sum"][...], out["twice"][...] = total[...], 2 * total[...]

    x = numbers(3)
    out = pl.pallas_call(kernel, {"sum": x, "twice": x}, scratch_shapes={"total": pltpu.VMEM((3,), jnp.float32)})(
        {"a": x, "b": x}
    )
    np.testing.assert_array_equal(out["twice"], 4 * x)


def test_copies_pipelines_and_semaphores():
    def kernel(x_ref, out_ref, buffer, semaphores):
        copy = pltpu.make_async_copy(x_ref.at[pl.ds(2, 4)], buffer, semaphores.at[1])
        copy.start()
        copy.wait()

        def double(x_block, out_block):
            out_block[...] = 2 * x_block[...] + pl.semaphore_read(semaphores.at[1])

        block = pl.BlockSpec((3,), lambda i: (i,))
        pltpu.emit_pipeline(double, grid=(2,), in_specs=[block], out_specs=[block])(buffer, out_ref.at[pl.ds(1, 4)])

    x = numbers(8)
    whole = pl.BlockSpec(memory_space=pl.ANY)
    scratch = [pltpu.VMEM((4,), jnp.float32), pltpu.SemaphoreType.DMA((2,))]
    out = pl.pallas_call(
        kernel, x, in_specs=[whole], out_specs=whole, scratch_shapes=scratch, input_output_aliases={0: 0}
    )(x)
    np.testing.assert_array_equal(out, [x[0], *(2 * x[2:6]), *x[5:]])


@pytest.mark.parametrize(
    ("source", "destination", "expected"),
    [
        (lambda x: x.at[pl.ds(0, 2)], lambda out: out.at[2:4], [0, 0, 1, 2]),
        (lambda x: x.at[pl.ds(0, 4)], lambda out: out, [1, 2, 3, 4]),
        (lambda x: x.at[0], lambda out: out.at[0], [1, 0, 0, 0]),
        (lambda x: (x.at[3], x.at[0:2]), lambda out: (out.at[0], out.at[1:3]), [4, 1, 2, 0]),
    ],
    ids=["slices", "a view and a Ref", "elements", "a pytree"],
)
def test_sync_copy_between_views(source, destination, expected):
    def kernel(x_ref, out_ref):
        out_ref[...] = jnp.zeros(4)
        pltpu.sync_copy(source(x_ref), destination(out_ref))

    np.testing.assert_array_equal(pl.pallas_call(kernel, jnp.zeros(4))(jnp.arange(1.0, 5.0)), expected)


def test_masked_elements_may_be_out_of_bounds():
    def kernel(x_ref, out_ref):
        start = pl.program_id(0) * 4
        mask = start + jnp.arange(4) < x_ref.shape[0]
        x = plgpu.load(x_ref.at[pl.ds(start, 4)], mask=mask, other=0.0)
        plgpu.store(out_ref.at[pl.ds(start, 4)], 2 * x, mask=mask)

    x = numbers(6)
    np.testing.assert_array_equal(pl.pallas_call(kernel, x, grid=(2,))(x), 2 * x)


def test_atomics_and_random_bits():
    def kernel(out_ref, bits_ref):
        out_ref[...] = jnp.zeros(3, jnp.int32)
        before = plgpu.atomic_add(out_ref, jnp.array([1, 1]), jnp.array([5, 6]), mask=jnp.array([True, True]))
        plgpu.atomic_max(out_ref, 0, before[0] + 2)
        pltpu.prng_seed(3, pl.program_id(0))
        bits_ref[...] = jnp.stack([pltpu.prng_random_bits((4,)), pltpu.prng_random_bits((4,))])

    out, bits = pl.pallas_call(
        kernel, (sw.ShapeDtypeStruct((3,), jnp.int32), sw.ShapeDtypeStruct((2, 4), jnp.uint32)), grid=(1,)
    )()
    np.testing.assert_array_equal(out, [2, 11, 0])
    assert len(np.unique(bits)) == 8


def test_custom_derivatives_around_kernels():
    @sw.custom_vjp
    def square(x):
        def kernel(x_ref, out_ref):
            out_ref[...] = x_ref[...] ** 2

        return pl.pallas_call(kernel, x)(x)

    square.defvjp(lambda x: (square(x), x), lambda x, g: (3 * g * x,))  # a wrong factor, so that the rule is seen
    x = numbers(3)
    np.testing.assert_allclose(sw.grad(lambda x: square(x).sum())(x), 3 * x)


BLOCK = pl.BlockSpec((2,), lambda i: (i,))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"in_specs": [pl.BlockSpec((2, 2), lambda i: (i, 0))]}, ValueError, r"\(2, 2\) has 2 dims, and the array of"),
        ({"in_specs": [pl.BlockSpec((2,), lambda i: (i, 0))]}, ValueError, "the index map returned 2 indices"),
        ({"in_specs": [pl.BlockSpec((2,), lambda i: 0.5 * i)]}, TypeError, "an index of type f32"),
        ({"in_specs": [pl.BlockSpec((2,), lambda i: pl.ds(i, 2))]}, TypeError, "Return an integer scalar"),
        ({"in_specs": [pl.BlockSpec(("a",), lambda i: i)]}, TypeError, "'a' is not a block dim"),
        ({"in_specs": [pl.BlockSpec((2.5,), lambda i: i)]}, TypeError, "2.5 is not a block dim"),
        ({"in_specs": [pl.BlockSpec((pl.Element("a"),), lambda i: i)]}, TypeError, "is not a block dim"),
        ({"in_specs": [pl.BlockSpec((pl.Element(2, (-1, 0)),), lambda i: i)]}, ValueError, "padding of .* is negative"),
        ({"in_specs": [pl.BlockSpec((2,), lambda i: None)]}, TypeError, "the index map returned None"),
        ({"in_specs": [pl.BlockSpec((0,), lambda i: i)]}, ValueError, "has an empty dim"),
        ({"in_specs": [BLOCK, BLOCK]}, ValueError, "Write one BlockSpec for each of the operands"),
        ({"in_specs": [3]}, TypeError, "3 is not a BlockSpec"),
        ({"in_specs": BLOCK}, TypeError, "in_specs must be a tuple or a list"),
        ({"grid": (-1,)}, ValueError, "-1 steps"),
        ({"grid": (1.5,)}, TypeError, "must be an integer"),
        ({"grid": (("a", 2),)}, UnsupportedError, "an axis with a name"),
        ({"input_output_aliases": {1: 0}}, ValueError, "there are 1 operands and 1 results"),
        ({"input_output_aliases": {"x": 0}}, TypeError, "has 'x': 0. Write the index of the operand"),
        ({"name": 3}, TypeError, "name must be a string, not 3"),
        ({"grid_spec": 3}, TypeError, "grid_spec must be a GridSpec, not 3"),
        ({"grid_spec": pl.GridSpec()}, ValueError, "grid, in_specs and grid_spec are both given"),
        ({"scratch_shapes": ["VMEM"]}, TypeError, "'VMEM' is not the type of a buffer"),
    ],
)
def test_errors_of_pallas_call(options, error, text):
    x = numbers(4)
    with pytest.raises(error, match=text):
        pl.pallas_call(lambda x_ref, out_ref, *_: None, x, **{"grid": (2,), "in_specs": [BLOCK], **options})(x)


@pytest.mark.parametrize(
    ("kernel", "error", "text"),
    [
        (lambda ref: 1, TypeError, "the kernel returned 1"),
        (lambda ref: ref[7], IndexError, "7 is out of bounds for dim 0, of size 4"),
        (lambda ref: ref[pl.ds(3, 2)], IndexError, r"ds\(3, 2, stride=1\) is out of bounds"),
        (lambda ref: pl.program_id(1), ValueError, "axis 1 does not exist: the grid of the kernel has 1 axes"),
        (lambda ref: pltpu.make_async_remote_copy(ref, ref), UnsupportedError, "To communicate, use the collectives"),
        (lambda ref: pl.semaphore_signal(ref, device_id=1), UnsupportedError, "Use the collectives of `lax`"),
        (lambda ref: pltpu.async_copy(ref, ref.at[1:], ref), ValueError, r"shape \(4,\) and the destination \(3,\)"),
        (lambda ref: pltpu.sync_copy(ref, ref.at[1:]), ValueError, r"shape \(4,\) and the destination \(3,\)"),
        (lambda ref: pltpu.sync_copy(ref.bitcast(jnp.int32), ref), TypeError, "int32 and the destination of float32"),
        (lambda ref: pl.run_scoped(lambda x: None, 3), TypeError, "3 is not the type of a buffer"),
        (lambda ref: ref.reshape(3)[...], ValueError, "has 4 elements"),
    ],
)
def test_errors_in_kernels(kernel, error, text):
    with pytest.raises(error, match=text):
        pl.pallas_call(kernel, sw.ShapeDtypeStruct((4,), jnp.float32), grid=(2,))()


def test_errors_without_a_kernel():
    with pytest.raises(ValueError, match="no kernel is being traced"):
        pl.program_id(0)
    with pytest.raises(TypeError, match="'vmem' is not a memory space"):
        pl.BlockSpec(memory_space="vmem")
    with pytest.raises(TypeError, match="index_map must be a function"):
        pl.BlockSpec(lambda i: i, (2,))
    with pytest.raises(TypeError, match="block_shape must be a sequence"):
        pl.BlockSpec(2, lambda i: i)
    with pytest.raises(TypeError, match="num_scalar_prefetch must be an integer"):
        pltpu.PrefetchScalarGridSpec("1")
