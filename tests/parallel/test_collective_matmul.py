"""all_gather_matmul and matmul_reduce_scatter: values, gradients, collectives and memory."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise import NamedSharding, P, lax
from shardwise.errors import StrategyError
from shardwise.parallel import all_gather_matmul, matmul_reduce_scatter

# For each function: the specs of x, w and the result, with dim -2.
SPECS = {
    all_gather_matmul: (P(None, "data"), P(None, "data"), P(None, None, "data")),
    matmul_reduce_scatter: (P(None, None, "data"), P("data"), P(None, "data")),
}
FUNCTIONS = pytest.mark.parametrize("function", SPECS, ids=lambda function: function.__name__)


def operands(*sizes, columns, dtype=np.float32):
    """Return x with these sizes, w, and the cotangent of their product."""
    rng = np.random.default_rng(0)
    shapes = (sizes, (sizes[-1], columns), (*sizes[:-1], columns))
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def reference(x, w, ct):
    """Return the product and the cotangents of both operands, in float64."""
    x, w, ct = (np.asarray(each, np.float64) for each in (x, w, ct))
    return x @ w, ct @ w.T, np.einsum("mk,mn->kn", x.reshape(-1, x.shape[-1]), ct.reshape(-1, ct.shape[-1]))


def value_and_cotangents(function):
    @sw.jit
    def both(x, w, ct):
        out, pullback = sw.vjp(function, x, w)
        return out, *pullback(ct)

    return both


def check(function, arrays, rtol=1e-5):
    results = value_and_cotangents(function)(*arrays)
    for actual, expected in zip(results, reference(*arrays), strict=True):
        assert actual.dtype == arrays[0].dtype
        np.testing.assert_allclose(
            np.asarray(actual, np.float64), expected, rtol=rtol, atol=rtol * np.abs(expected).max()
        )


@FUNCTIONS
@pytest.mark.table(default=1)
@pytest.mark.parametrize("size", [8, 4, 3, 1, 2, 5, 6, 7])
def test_equals_the_product(function, size):
    mesh = sw.make_mesh((size,), ("s",), devices=sw.devices()[:size])
    arrays = operands(2, 2 * size, 3 * size, columns=size)
    check(lambda x, w: function(x, w, axis="s", mesh=mesh), arrays)


@st.composite
def cases(draw):
    size, ndim = draw(st.integers(1, 8)), draw(st.integers(2, 4))
    dim = draw(st.integers(0, ndim - 2))
    sizes = [draw(st.integers(1, 3)) for _ in range(ndim)]
    sizes[dim] *= size
    sizes[-1] *= size
    return size, dim - ndim if draw(st.booleans()) else dim, sizes, size * draw(st.integers(1, 3))


def check_case(function, case):
    size, dim, sizes, columns = case
    mesh = sw.make_mesh((size,), ("s",), devices=sw.devices()[:size])
    check(lambda x, w: function(x, w, axis="s", dim=dim, mesh=mesh), operands(*sizes, columns=columns))


@FUNCTIONS
@settings(max_examples=3, deadline=None, derandomize=True)
@given(case=cases())
def test_random_sizes_equal_the_product(function, case):
    check_case(function, case)


@pytest.mark.slow
@FUNCTIONS
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases())
def test_many_random_sizes_equal_the_product(function, case):
    check_case(function, case)


@FUNCTIONS
def test_several_axes_count_as_one(mesh, function):
    check(lambda x, w: function(x, w, axis=("data", "model"), mesh=mesh), operands(8, 16, columns=8))


@FUNCTIONS
@pytest.mark.parametrize("check_vma", [True, False])
def test_inside_shard_map(mesh, function, check_vma):
    """Another manual axis shards the batch: the gradient of w is summed over it."""
    x, w, y = SPECS[function]
    mapped = sw.shard_map(
        lambda x, w: function(x, w, axis="data"),
        mesh=mesh,
        in_specs=(P("model", *x[1:]), w),
        out_specs=P("model", *y[1:]),
        check_vma=check_vma,
    )
    check(mapped, operands(2, 8, 12, columns=4))


@FUNCTIONS
def test_explicit_axes(explicit_mesh, function):
    arrays = operands(2, 8, 12, columns=4)
    specs = [P(*("X" if axis == "data" else axis for axis in spec)) for spec in SPECS[function]]
    specs = [P("Y", *spec[1:]) if position != 1 else spec for position, spec in enumerate(specs)]
    put = [sw.device_put(x, NamedSharding(explicit_mesh, spec)) for x, spec in zip(arrays, specs, strict=True)]
    results = value_and_cotangents(lambda x, w: function(x, w, axis="X"))(*put)
    for actual, expected in zip(results, reference(*arrays), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@FUNCTIONS
def test_bfloat16(mesh, function):
    check(
        lambda x, w: function(x, w, axis="data", mesh=mesh),
        operands(2, 8, 12, columns=4, dtype=ml_dtypes.bfloat16),
        2e-2,
    )


@FUNCTIONS
def test_second_derivative(mesh, function):
    x, w, ct = operands(8, 12, columns=4)

    def penalty(multiply):
        return sw.jit(sw.grad(lambda x: (sw.grad(lambda x: (multiply(x, w) ** 3 * ct).sum())(x) ** 2).sum()))(x)

    ring = penalty(lambda x, w: function(x, w, axis="data", mesh=mesh))
    np.testing.assert_allclose(ring, penalty(lambda x, w: x @ w), rtol=1e-3)


def by_collectives(function, mesh):
    """Return the same product with an all-gather before it, or a reduce-scatter after it."""

    def multiply(x, w):
        if function is all_gather_matmul:
            return lax.all_gather(x, "data", axis=1, tiled=True) @ w
        return lax.psum_scatter(x @ w, "data", scatter_dimension=1, tiled=True)

    x, w, y = SPECS[function]
    return sw.shard_map(multiply, mesh=mesh, in_specs=(x, w), out_specs=y)


def lowered(mesh, function, sizes, columns):
    """Return the forward pass and both passes: of the ring, and by collectives."""
    types = [
        sw.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))
        for x, spec in zip(operands(*sizes, columns=columns), SPECS[function], strict=True)
    ]

    def passes(multiply):
        return sw.jit(multiply).lower(*types[:2]), value_and_cotangents(multiply).lower(*types)

    return passes(lambda x, w: function(x, w, axis="data", mesh=mesh)), passes(by_collectives(function, mesh))


@FUNCTIONS
@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_collectives_are_permutes_of_blocks(function, size):
    """n - 1 blocks forward, in n / 2 steps; the gradients send 2(n - 1) or n - 1 blocks."""
    mesh = sw.make_mesh((size,), ("data",), devices=sw.devices()[:size])
    ring, (other, _) = lowered(mesh, function, (2, 4 * size, 5 * size), 3 * size)
    forward, both = (each.plan for each in ring)
    width = 5 * size if function is all_gather_matmul else 3 * size
    block = 2 * 4 * width * 4
    for plan in (forward, both):
        assert {row.kind for row in plan.collectives} == {"ppermute"}
    assert sum(row.times for row in forward.collectives) == size - 1
    assert forward.wire_bytes == (size - 1) * block == other.plan.wire_bytes
    # Backward, all_gather_matmul sends the blocks of x again, and sums for its gradient; the other sends ct_y once.
    factor = 3 if function is all_gather_matmul else 2
    assert sum(row.times for row in both.collectives) == factor * (size - 1)
    assert both.wire_bytes == factor * (size - 1) * block


@FUNCTIONS
def test_memory_is_less_than_with_a_gather_or_a_scatter(function):
    mesh = sw.make_mesh((8,), ("data",))
    sizes, columns = ((1, 4096, 2048), 1024) if function is all_gather_matmul else ((1, 4096, 1024), 2048)
    gathered = 4096 * 2048 * 4  # all of x, or the product before its reduction
    for ring, other in zip(*lowered(mesh, function, sizes, columns), strict=True):
        peaks = [each.compile().memory_analysis().peak_memory_in_bytes for each in (ring, other)]
        assert peaks[1] > gathered and peaks[0] < 0.7 * peaks[1]


@FUNCTIONS
def test_other_axes_shard_the_batch(mesh, function):
    """Data parallelism adds one sum, of the gradient of w."""
    x, w, y = (NamedSharding(mesh, spec) for spec in SPECS[function])
    x, y = (NamedSharding(mesh, P("model", *each.spec[1:])) for each in (x, y))
    arrays = [sw.device_put(a, s) for a, s in zip(operands(2, 8, 12, columns=4), (x, w, y), strict=True)]
    both = value_and_cotangents(lambda x, w: function(x, w, axis="data", mesh=mesh))
    plan = both.lower(*arrays).plan
    assert [row.axes for row in plan.collectives if row.kind != "ppermute"] == [("model",)]
    check(lambda x, w: function(x, w, axis="data", mesh=mesh), arrays)


def test_sequence_parallel_mlp(mesh):
    """Megatron's MLP with sequence parallelism: only permutes, and as many bytes as with a gather and a scatter."""
    rng = np.random.default_rng(0)
    x, up, down = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 8, 6), (6, 12), (12, 6)))

    def mlp(x, up, down):
        hidden = sw.nn.gelu(all_gather_matmul(x, up, axis="data", mesh=mesh))
        return matmul_reduce_scatter(hidden, down, axis="data", mesh=mesh)

    specs = (P(None, "data"), P(None, "data"), P("data"))
    arrays = [sw.device_put(a, NamedSharding(mesh, s)) for a, s in zip((x, up, down), specs, strict=True)]
    np.testing.assert_allclose(sw.jit(mlp)(*arrays), sw.nn.gelu(x @ up) @ down, rtol=1e-4, atol=1e-4)
    plan = sw.jit(mlp).lower(*arrays).plan
    assert plan.wire_bytes == 2 * 3 * (2 * 2 * 6 * 4)
    assert set(plan.counts()) == {"ppermute"}


@FUNCTIONS
def test_errors_name_what_does_not_fit(mesh, function):
    x, w, _ = operands(2, 8, 12, columns=4)

    def fails(message, *arrays, **options):
        with pytest.raises(StrategyError, match=message):
            function(*(arrays or (x, w)), **{"axis": "data", "mesh": mesh, **options})

    fails("the mesh has no axis 'date'", axis="date")
    fails("needs a mesh", mesh=None)
    fails("axis must be the name of a mesh axis, not None", axis=None)
    fails(r"x and w must be \[..., M, K\] and \[K, N\]", x, w[:11])
    fails(r"x and w must be \[..., M, K\] and \[K, N\]", x[0, 0], w)
    fails("x and w must have the same dtype", x, w.astype(np.float16))
    fails("dim must be a dim of x .* other than the last one, not 2", dim=2)
    fails("dim must be a dim of x .* not -4", dim=-4)
    fails("7.*4 devices along 'data' do not divide", x[:, :7], w)
    if function is all_gather_matmul:
        fails("the number of columns of w f32.12,3. is 3", x, w[:, :3])
    else:
        fails("the number of rows of w f32.11,4. is 11", x[:, :, :11], w[:11])
    with pytest.raises(TypeError):
        function("x", w, axis="data", mesh=mesh)
