"""Collectives along one or several axis names, in groups and of pytrees: values, gradients, vmap, planned counts."""

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.sharding import AbstractMesh, NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.manual.devices import Devices
from tests.manual.stages import simulated

SIZES = {"x": 4, "y": 2}
DEVICES = Devices(SIZES)
ALL = P(("x", "y"))
SHAPE = (8, 4)  # of a shard
RNG = np.random.default_rng(0)
DTYPES = (np.float16, ml_dtypes.bfloat16, np.int8, np.uint32, np.bool_, np.complex64)
CHECKED = pytest.mark.parametrize("check", [True, False], ids=["checked", "unchecked"])
NAMES = {
    "x": (("x",), None),
    "y x": (("y", "x"), None),
    "x in groups": (("x",), [[3, 0], [1, 2]]),
    "x y in groups": (("x", "y"), [[7, 0, 3, 5], [1, 2, 4, 6]]),
}


@pytest.fixture(scope="module")
def mesh():
    return sw.make_mesh(tuple(SIZES.values()), tuple(SIZES))


def table(axes, groups):
    """Return each collective as a function of one shard of shape (8, 4), and in numpy as one of all shards."""
    size = DEVICES.count(axes)
    count = len(groups[0]) if groups else size
    name = axes[0] if len(axes) == 1 else axes
    options = {"axis_index_groups": groups}
    rows = {
        "psum": (
            lambda x: lax.psum(x, name, **options),
            lambda d, xs: d.reduce("sum", xs, axes, groups),
        ),
        "pmean": (
            lambda x: lax.pmean(x, name, **options),
            lambda d, xs: [x / count for x in d.reduce("sum", xs, axes, groups)],
        ),
        "pmax": (
            lambda x: lax.pmax(x, name, **options),
            lambda d, xs: d.reduce("max", xs, axes, groups),
        ),
        "pmin": (
            lambda x: lax.pmin(x, name, **options),
            lambda d, xs: d.reduce("min", xs, axes, groups),
        ),
        "all_gather": (
            lambda x: lax.all_gather(x, name, axis=1, **options),
            lambda d, xs: d.all_gather(xs, axes, 1, False, groups),
        ),
        "all_gather, tiled": (
            lambda x: lax.all_gather(x, name, axis=-1, tiled=True, **options),
            lambda d, xs: d.all_gather(xs, axes, 1, True, groups),
        ),
        "psum_scatter": (
            lambda x: lax.psum_scatter(x.reshape(-1, count), name, scatter_dimension=1, **options),
            lambda d, xs: d.psum_scatter([x.reshape(-1, count) for x in xs], axes, 1, False, groups),
        ),
        "psum_scatter, tiled": (
            lambda x: lax.psum_scatter(x, name, tiled=True, **options),
            lambda d, xs: d.psum_scatter(xs, axes, 0, True, groups),
        ),
        "all_to_all": (
            lambda x: lax.all_to_all(x.reshape(-1, count, 2), name, 1, 0, **options),
            lambda d, xs: d.all_to_all([x.reshape(-1, count, 2) for x in xs], axes, 1, 0, False, groups),
        ),
        "all_to_all, tiled": (
            lambda x: lax.all_to_all(x, name, 0, 1, tiled=True, **options),
            lambda d, xs: d.all_to_all(xs, axes, 0, 1, True, groups),
        ),
        "pswapaxes": (
            lambda x: lax.pswapaxes(x.reshape(count, -1), name, 0, **options),
            lambda d, xs: d.all_to_all([x.reshape(count, -1) for x in xs], axes, 0, 0, False, groups),
        ),
    }
    if groups:
        return rows
    ring = [(k, (k + 1) % size) for k in range(size)]
    partial_ring = [(0, 2), (3, 1), (2, 0)]
    order = [(3 * k + 1) % size if size % 3 else size - 1 - k for k in range(size)]
    return rows | {
        "all_gather, invarying": (
            lambda x: lax.all_gather(x, name, axis=1, to="invarying"),
            lambda d, xs: d.all_gather(xs, axes, 1, False),
        ),
        "ppermute": (lambda x: lax.ppermute(x, name, ring), lambda d, xs: d.ppermute(xs, axes, ring)),
        "ppermute, partial": (
            lambda x: lax.ppermute(x, name, partial_ring),
            lambda d, xs: d.ppermute(xs, axes, partial_ring),
        ),
        "pshuffle": (
            lambda x: lax.pshuffle(x, name, order),
            lambda d, xs: d.ppermute(xs, axes, [(sender, receiver) for receiver, sender in enumerate(order)]),
        ),
        "pbroadcast": (
            lambda x: lax.pbroadcast(x, name, 2),
            lambda d, xs: d.map_groups(xs, axes, None, lambda group: [group[2]] * len(group)),
        ),
        "axis_index": (
            lambda x: x * lax.axis_index(name),
            lambda d, xs: [x * i for x, i in zip(xs, d.axis_index(axes), strict=True)],
        ),
        "pvary": (lambda x: lax.pvary(x, name), lambda d, xs: xs),
    }


def all_rows():
    return {
        f"{row} along {axes_name}": pair
        for axes_name, axes_and_groups in NAMES.items()
        for row, pair in table(*axes_and_groups).items()
    }


def shard_mapped(mesh, f, check=True, in_specs=ALL, out_specs=ALL):
    return sw.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check)


def reference(numpy, array):
    """Return the shards that all devices end with, concatenated along the first dim."""
    return DEVICES.unshard(numpy(DEVICES, DEVICES.shard(array, (("x", "y"),))), (("x", "y"),))


def assert_close(actual, expected, name=""):
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=1e-5, atol=1e-5, err_msg=name)


@CHECKED
def test_values(mesh, check):
    rows = all_rows()
    x = RNG.normal(size=(8 * SHAPE[0], SHAPE[1])).astype(np.float32)
    region = shard_mapped(mesh, lambda x: {name: ours(x) for name, (ours, _) in rows.items()}, check)
    results = sw.jit(region)(x) if check else simulated(region, mesh.abstract, x)
    for name, (_, numpy) in rows.items():
        assert_close(results[name], reference(numpy, x), name)


@pytest.mark.table(default=1)
@CHECKED
def test_gradients_match_finite_differences(mesh, check):
    """On eight devices, for every collective of sin(x); the finite differences are numpy's, in float64."""
    rows = all_rows()
    x = RNG.normal(size=(8 * SHAPE[0], SHAPE[1])).astype(np.float32)
    weights = {name: RNG.normal(size=reference(numpy, x).shape).astype(np.float32) for name, (_, numpy) in rows.items()}

    @sw.jit
    def gradients(x, weights):
        results = {}
        for name, (ours, _) in rows.items():
            region = shard_mapped(mesh, lambda x, ours=ours: ours(jnp.sin(x)), check)
            results[name] = sw.grad(lambda x, region=region, name=name: (region(x) * weights[name]).sum())(x)
        return results

    check_gradients(gradients(x, weights), {name: numpy for name, (_, numpy) in rows.items()}, x, weights, reference)


def check_gradients(gradients, rows, x, weights, reference):
    for name, numpy in rows.items():
        for tangent in RNG.normal(size=(3, *x.shape)):

            def loss(step, name=name, numpy=numpy, tangent=tangent):
                shifted = np.sin(x.astype(np.float64) + step * tangent)
                return (reference(numpy, shifted) * weights[name].astype(np.float64)).sum()

            slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
            actual = (np.asarray(gradients[name], np.float64) * tangent).sum()
            assert abs(actual - slope) < 2e-4 * max(1.0, abs(slope)), (
                f"{name}: gradient {actual}, finite difference {slope}"
            )


def test_vmap_around_and_inside(mesh):
    """vmap of the region, inside of the region, and inside along another dim."""
    rows = all_rows()
    x = RNG.normal(size=(3, 8 * SHAPE[0], SHAPE[1])).astype(np.float32)

    def three_variants(x):
        each = {name: ours for name, (ours, _) in rows.items()}
        around = sw.vmap(shard_mapped(mesh, lambda x: {name: ours(x) for name, ours in each.items()}))(x)
        inside = shard_mapped(
            mesh,
            lambda x: {name: sw.vmap(ours)(x) for name, ours in each.items()},
            in_specs=P(None, ("x", "y")),
            out_specs=P(None, ("x", "y")),
        )(x)
        last = shard_mapped(
            mesh,
            lambda x: {name: sw.vmap(ours, 1, 1)(x) for name, ours in each.items()},
            in_specs=P(("x", "y")),
            out_specs=P(("x", "y")),
        )(jnp.moveaxis(x, 0, 1))
        return around, inside, last

    around, inside, last = simulated(three_variants, mesh.abstract, x)
    for name, (_, numpy) in rows.items():
        expected = np.stack([reference(numpy, one) for one in x])
        assert_close(around[name], expected, name)
        assert_close(inside[name], expected, name)
        assert_close(last[name], np.moveaxis(expected, 0, 1), name)


def test_vmap_along_an_axis_of_the_mesh(mesh):
    """With `spmd_axis_name` the batch is sharded along that axis, and nothing is sent along it."""
    region = sw.shard_map(
        lambda w, x: jnp.tanh(x @ lax.all_gather(w, "y", tiled=True)), mesh=mesh, in_specs=(P("y"), P()), out_specs=P()
    )
    w, x = RNG.normal(size=(4, 8, 8)).astype(np.float32), RNG.normal(size=(4, 6, 8)).astype(np.float32)
    expected = np.tanh(np.einsum("sij,sjk->sik", x, w))
    shardings = NamedSharding(mesh, P("x", "y")), NamedSharding(mesh, P("x"))

    @sw.jit
    def both(w, x):
        y, pull = sw.vjp(sw.vmap(region, spmd_axis_name="x"), w, x)
        return y, pull(y)

    y, (dw, _) = both(*map(sw.device_put, (w, x), shardings))
    assert_close(y, expected, "result")
    assert_close(dw, np.einsum("sij,sik->sjk", x, expected * (1 - expected**2)), "gradient")
    assert y.sharding.is_equivalent_to(shardings[1], 3)
    collectives = both.lower(*map(sw.device_put, (w, x), shardings)).compile().plan.collectives
    assert {axis for one in collectives for axis in one.axes} == {"y"}
    uneven = sw.vmap(region, spmd_axis_name="x")(w[:3], x[:3])  # a batch of three on four devices, eagerly
    assert_close(uneven, expected[:3], "uneven")
    assert uneven.sharding.spec == P("x")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("y", "axis 'y' already shards its arguments or results"),
        ("x", "its collectives use axis 'x'"),
        ("z", "the mesh x=4, y=2 has no axis 'z'. Its axes are 'x', 'y'."),
    ],
)
def test_vmap_along_an_axis_that_the_region_uses_raises(mesh, name, reason):
    region = sw.shard_map(
        lambda x: x + lax.axis_index("x"), mesh=mesh, in_specs=P("y"), out_specs=P("y"), check_vma=False
    )
    with pytest.raises(sw.errors.ShardingError) as caught:
        sw.vmap(region, spmd_axis_name=name)(np.ones((4, 8), np.float32))
    assert str(caught.value) == f"vmap with spmd_axis_name={(name,)} is incompatible with a shard_map inside: {reason}"


def reference_of_stacked(numpy, stacked):
    """Return what `numpy` computes of shards that are stacked along the first two dims, stacked likewise."""
    flat = stacked.reshape(-1, *stacked.shape[2:])
    results = np.stack(numpy(DEVICES, list(flat)))
    return results.reshape(4, 2, *results.shape[1:])


def test_collectives_along_vmapped_axes():
    rows = all_rows()
    x = RNG.normal(size=(4, 2, *SHAPE)).astype(np.float32)

    def along_both(f):
        return sw.vmap(sw.vmap(f, axis_name="y"), axis_name="x")

    weights = {
        name: RNG.normal(size=reference_of_stacked(numpy, x).shape).astype(np.float32)
        for name, (_, numpy) in rows.items()
    }

    def both(x, weights):
        values = {name: along_both(ours)(x) for name, (ours, _) in rows.items()}
        gradients = {
            name: sw.grad(
                lambda x, ours=ours, name=name: (along_both(lambda x: ours(jnp.sin(x)))(x) * weights[name]).sum()
            )(x)
            for name, (ours, _) in rows.items()
        }
        return values, gradients

    values, gradients = simulated(both, AbstractMesh((), ()), x, weights)
    for name, (_, numpy) in rows.items():
        assert_close(values[name], reference_of_stacked(numpy, x), name)
    check_gradients(gradients, {name: numpy for name, (_, numpy) in rows.items()}, x, weights, reference_of_stacked)


@pytest.mark.parametrize("outer", ["x", "y"])
def test_collectives_along_a_vmapped_axis_and_a_mesh_axis(outer):
    """shard_map binds one of the names, a vmap inside of it the other."""
    rows = all_rows()
    inner = "y" if outer == "x" else "x"
    mesh = AbstractMesh((SIZES[outer],), (outer,))
    x = RNG.normal(size=(4, 2, *SHAPE)).astype(np.float32)
    place = 0 if outer == "x" else 1

    def body(x):
        return {
            name: jnp.expand_dims(sw.vmap(ours, axis_name=inner)(jnp.squeeze(x, place)), place)
            for name, (ours, _) in rows.items()
        }

    spec = P("x") if outer == "x" else P(None, "y")
    results = simulated(shard_mapped(mesh, body, in_specs=spec, out_specs=spec), mesh, x)
    for name, (_, numpy) in rows.items():
        assert_close(results[name], reference_of_stacked(numpy, x), name)


def test_pytrees_python_scalars_and_axis_sizes(mesh):
    seen = []

    def f(x):
        seen.extend([lax.psum(1, "x"), lax.psum(2.5, ("x", "y")), lax.psum(1, "x", axis_index_groups=[[0, 1], [2, 3]])])
        seen.extend([lax.axis_size("x"), lax.axis_size(("y", "x")), lax.pmean(3, "y")])
        total = lax.psum({"a": x, "b": (x.sum(), 2)}, ("x", "y"))
        shifted = lax.ppermute([x, x[0]], "y", [(0, 1), (1, 0)])
        return total, shifted, lax.pmax((x, -x), "x")

    specs = (P(), [P(("x", "y")), P(("x", "y"))], P("y"))
    x = RNG.normal(size=(8, 3)).astype(np.float32)
    total, shifted, largest = sw.jit(shard_mapped(mesh, f, out_specs=specs))(x)
    assert seen == [4, 20.0, 2, 4, 8, 3.0]
    assert_close(total["a"], x.reshape(8, 1, 3).sum(0))
    assert_close(total["b"][0], x.sum())
    assert int(total["b"][1]) == 16
    swapped = x.reshape(4, 2, 3)[:, ::-1].reshape(8, 3)
    assert_close(shifted[0], swapped)
    assert_close(shifted[1], swapped.reshape(24))
    assert_close(largest[0], x.reshape(4, 2, 3).max(0))
    assert_close(largest[1], -x.reshape(4, 2, 3).min(0))


@pytest.mark.parametrize("dtype", DTYPES, ids=[np.dtype(dtype).name for dtype in DTYPES])
def test_dtypes(mesh, dtype):
    x = (RNG.normal(size=(16, 4)) * 3).astype(np.float32).astype(np.int8).astype(dtype)
    moving = ["all_gather, tiled along x", "all_to_all, tiled along y x", "ppermute, partial along x"]
    reducing = ["psum along x", "psum_scatter, tiled along y"]
    if np.dtype(dtype).kind != "c" and dtype is not np.bool_:
        reducing += ["pmax along y x", "pmin along x"]
    if dtype is np.bool_:
        reducing = reducing[:1]
    rows = {
        f"{row} along {axes_name}": pair
        for axes_name in ("x", "y", "y x")
        for row, pair in table(tuple(axes_name.split()), None).items()
    }
    chosen = {name: rows[name] for name in (*moving, *reducing)}
    results = sw.jit(
        shard_mapped(mesh, lambda x: {name: ours(jnp.tile(x, (4, 1))) for name, (ours, _) in chosen.items()})
    )(x)
    for name, (_, numpy) in chosen.items():
        shards = [np.tile(shard, (4, 1)) for shard in DEVICES.shard(x, (("x", "y"),))]
        expected = DEVICES.unshard(numpy(DEVICES, shards), (("x", "y"),))
        assert results[name].dtype == expected.dtype
        np.testing.assert_array_equal(np.asarray(results[name]), expected, name)


def test_pmax_and_pmin_of_nan_and_infinities(mesh):
    x = np.array([1, np.nan, 3, -np.inf, np.inf, 0.0, -0.0, 2], np.float32)
    largest, smallest = sw.jit(
        shard_mapped(mesh, lambda x: (lax.pmax(x, ("x", "y")), lax.pmin(x, "y")), out_specs=(P(), P("x")))
    )(x)
    assert np.isnan(np.asarray(largest)).all()
    np.testing.assert_array_equal(np.asarray(smallest), [np.nan, -np.inf, 0, -0.0])


# Communication. The transpose of a psum to a replicated value is a pvary, which sends nothing.


def collective_counts(function, *args):
    return sw.jit(function).lower(*args).plan.counts()


@pytest.fixture(scope="module")
def put_sharded(mesh):
    def put(shape, *spec):
        return sw.device_put(np.ones(shape, np.float32), NamedSharding(mesh, P(*spec)))

    return put


COLLECTIVES = {
    # function and specs; collectives forward; forward and backward with check_vma; and without
    "psum": (
        (lambda x: lax.psum(jnp.sin(x), ("x", "y")), ALL, P()),
        {"all_reduce": 1},
        {"all_reduce": 1},
        {"all_reduce": 2},
    ),
    "pmean": (
        (lambda x: lax.pmean(jnp.sin(x), "x"), P("x"), P()),  # nothing uses y, so copies along it are not summed
        {"all_reduce": 1},
        {"all_reduce": 1},
        {"all_reduce": 2},
    ),
    "all_gather": (
        (lambda x: lax.all_gather(jnp.sin(x), ("x", "y"), tiled=True), ALL, ALL),
        {"all_gather": 1},
        {"all_gather": 1, "reduce_scatter": 1},
        {"all_gather": 1, "reduce_scatter": 1},
    ),
    "all_gather to invarying": (
        (lambda x: lax.all_gather(jnp.sin(x), ("y", "x"), tiled=True, to="invarying"), ALL, P()),
        {"all_gather": 1},
        {"all_gather": 1},
        {"all_gather": 1, "reduce_scatter": 1},
    ),
    "psum_scatter": (
        (lambda x: lax.psum_scatter(jnp.sin(x), ("x", "y"), tiled=True), ALL, ALL),
        {"reduce_scatter": 1},
        {"reduce_scatter": 1, "all_gather": 1},
        {"reduce_scatter": 1, "all_gather": 1},
    ),
    "all_to_all": (
        (lambda x: lax.all_to_all(jnp.sin(x), ("x", "y"), 0, 1, tiled=True), ALL, ALL),
        {"all_to_all": 1},
        {"all_to_all": 2},
        {"all_to_all": 2},
    ),
    "ppermute": (
        (lambda x: lax.ppermute(jnp.sin(x), ("x", "y"), [(k, (k + 3) % 8) for k in range(8)]), ALL, ALL),
        {"ppermute": 1},
        {"ppermute": 2},
        {"ppermute": 2},
    ),
    "a replicated operand": (
        (lambda x: jnp.sin(x) * lax.axis_index("x"), P(), P("x")),
        {},
        {"all_reduce": 1},
        {"all_reduce": 1},
    ),
}


def forward_and_back(region):
    """Return the result and the gradient, for a cotangent with the sharding of the result."""

    def both(x, cotangent):
        y, pull = sw.vjp(region, x)
        return y, pull(cotangent)

    return both


@pytest.mark.parametrize("name", COLLECTIVES)
def test_planned_collectives(mesh, put_sharded, name):
    (f, in_specs, out_specs), forward, checked, unchecked = COLLECTIVES[name]
    x = put_sharded((64, 4), *in_specs)
    region = shard_mapped(mesh, f, True, in_specs, out_specs)
    assert collective_counts(region, x) == forward
    cotangent = put_sharded(sw.eval_shape(region, x).shape, *out_specs)
    for check, expected in ((True, checked), (False, unchecked)):
        region = shard_mapped(mesh, f, check, in_specs, out_specs)
        assert collective_counts(forward_and_back(region), x, cotangent) == expected, check


def test_psum_and_its_gradient_need_one_all_reduce(mesh, put_sharded):
    region = shard_mapped(mesh, lambda x: lax.psum(jnp.sin(x).sum(), ("x", "y")), out_specs=P())
    x = put_sharded((64, 4), ("x", "y"))
    assert collective_counts(region, x) == {"all_reduce": 1}
    assert collective_counts(sw.grad(region), x) == {}  # cos(x) is local
    assert collective_counts(sw.value_and_grad(region), x) == {"all_reduce": 1}


def gradients_of(region):
    """Return the gradients of half the sum of squares, without the sum itself."""

    def gradients(*args):
        y, pull = sw.vjp(region, *args)
        return pull(y)

    return gradients


def test_gathered_weights_are_gathered_once_and_their_gradients_scattered(mesh, put_sharded):
    """FSDP: the gathered weight is a residual of the gradient of x, unless it is rematerialized."""

    def layer(x, w):
        return jnp.tanh(x @ lax.all_gather(w, ("x", "y"), tiled=True))

    region = shard_mapped(mesh, layer, in_specs=(ALL, ALL))
    x, w = put_sharded((16, 8), ("x", "y")), put_sharded((8, 8), ("x", "y"))
    assert collective_counts(gradients_of(region), x, w) == {"all_gather": 1, "reduce_scatter": 1}
    remat = shard_mapped(mesh, sw.checkpoint(layer), in_specs=(ALL, ALL))
    assert collective_counts(gradients_of(remat), x, w) == {"all_gather": 2, "reduce_scatter": 1}


def test_gradients_of_replicated_weights_need_one_all_reduce(mesh, put_sharded):
    region = shard_mapped(mesh, lambda x, w: jnp.tanh(x @ w), in_specs=(ALL, P()))
    x, w = put_sharded((16, 8), ("x", "y")), put_sharded((8, 8))
    assert collective_counts(gradients_of(region), x, w) == {"all_reduce": 1}


def test_wire_bytes_depend_on_the_group_size(mesh, put_sharded):
    def wire_bytes(groups):
        region = shard_mapped(mesh, lambda x: lax.psum(x, "x", axis_index_groups=groups))
        return sw.jit(region).lower(put_sharded((64, 4), ("x", "y"))).plan.wire_bytes

    shard_bytes = 8 * 4 * 4
    assert wire_bytes(None) == 2 * shard_bytes * 3 / 4
    assert wire_bytes([[0, 3], [1, 2]]) == 2 * shard_bytes / 2
    assert wire_bytes([[0], [1], [2], [3]]) == 0
