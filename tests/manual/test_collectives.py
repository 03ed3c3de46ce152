"""Every collective, along one name or several, in groups and on trees: values, slopes, vmap; how many are planned."""

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
SHAPE = (8, 4)  # of a piece
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
    """For each collective: what one device does, and all of them in numpy, with a piece of shape (8, 4)."""
    whole = DEVICES.count(axes)
    count = len(groups[0]) if groups else whole
    name = axes[0] if len(axes) == 1 else axes
    keywords = {"axis_index_groups": groups}
    rows = {
        "psum": (
            lambda x: lax.psum(x, name, **keywords),
            lambda d, xs: d.reduced("sum", xs, axes, groups),
        ),
        "pmean": (
            lambda x: lax.pmean(x, name, **keywords),
            lambda d, xs: [x / count for x in d.reduced("sum", xs, axes, groups)],
        ),
        "pmax": (
            lambda x: lax.pmax(x, name, **keywords),
            lambda d, xs: d.reduced("max", xs, axes, groups),
        ),
        "pmin": (
            lambda x: lax.pmin(x, name, **keywords),
            lambda d, xs: d.reduced("min", xs, axes, groups),
        ),
        "all_gather": (
            lambda x: lax.all_gather(x, name, axis=1, **keywords),
            lambda d, xs: d.all_gather(xs, axes, 1, False, groups),
        ),
        "all_gather, tiled": (
            lambda x: lax.all_gather(x, name, axis=-1, tiled=True, **keywords),
            lambda d, xs: d.all_gather(xs, axes, 1, True, groups),
        ),
        "psum_scatter": (
            lambda x: lax.psum_scatter(x.reshape(-1, count), name, scatter_dimension=1, **keywords),
            lambda d, xs: d.psum_scatter([x.reshape(-1, count) for x in xs], axes, 1, False, groups),
        ),
        "psum_scatter, tiled": (
            lambda x: lax.psum_scatter(x, name, tiled=True, **keywords),
            lambda d, xs: d.psum_scatter(xs, axes, 0, True, groups),
        ),
        "all_to_all": (
            lambda x: lax.all_to_all(x.reshape(-1, count, 2), name, 1, 0, **keywords),
            lambda d, xs: d.all_to_all([x.reshape(-1, count, 2) for x in xs], axes, 1, 0, False, groups),
        ),
        "all_to_all, tiled": (
            lambda x: lax.all_to_all(x, name, 0, 1, tiled=True, **keywords),
            lambda d, xs: d.all_to_all(xs, axes, 0, 1, True, groups),
        ),
        "pswapaxes": (
            lambda x: lax.pswapaxes(x.reshape(count, -1), name, 0, **keywords),
            lambda d, xs: d.all_to_all([x.reshape(count, -1) for x in xs], axes, 0, 0, False, groups),
        ),
    }
    if groups:
        return rows
    ring = [(k, (k + 1) % whole) for k in range(whole)]
    some = [(0, 2), (3, 1), (2, 0)]
    order = [(3 * k + 1) % whole if whole % 3 else whole - 1 - k for k in range(whole)]
    return rows | {
        "all_gather, invarying": (
            lambda x: lax.all_gather(x, name, axis=1, to="invarying"),
            lambda d, xs: d.all_gather(xs, axes, 1, False),
        ),
        "ppermute": (lambda x: lax.ppermute(x, name, ring), lambda d, xs: d.ppermute(xs, axes, ring)),
        "ppermute, of some": (lambda x: lax.ppermute(x, name, some), lambda d, xs: d.ppermute(xs, axes, some)),
        "pshuffle": (
            lambda x: lax.pshuffle(x, name, order),
            lambda d, xs: d.ppermute(xs, axes, [(sender, receiver) for receiver, sender in enumerate(order)]),
        ),
        "pbroadcast": (
            lambda x: lax.pbroadcast(x, name, 2),
            lambda d, xs: d.each_team(xs, axes, None, lambda team: [team[2]] * len(team)),
        ),
        "axis_index": (
            lambda x: x * lax.axis_index(name),
            lambda d, xs: [x * i for x, i in zip(xs, d.axis_index(axes), strict=True)],
        ),
        "pvary": (lambda x: lax.pvary(x, name), lambda d, xs: xs),
    }


def all_rows():
    return {f"{row} along {what}": pair for what, given in NAMES.items() for row, pair in table(*given).items()}


def mapped(mesh, f, check=True, in_specs=ALL, out_specs=ALL):
    return sw.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check)


def looped(numpy, whole):
    """What all devices have in the end, joined along the first dim."""
    return DEVICES.join(numpy(DEVICES, DEVICES.cut(whole, (("x", "y"),))), (("x", "y"),))


def close(got, wanted, name=""):
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-5, atol=1e-5, err_msg=name)


@CHECKED
def test_values(mesh, check):
    rows = all_rows()
    x = RNG.normal(size=(8 * SHAPE[0], SHAPE[1])).astype(np.float32)
    region = mapped(mesh, lambda x: {name: ours(x) for name, (ours, _) in rows.items()}, check)
    found = sw.jit(region)(x) if check else simulated(region, mesh.abstract, x)
    for name, (_, numpy) in rows.items():
        close(found[name], looped(numpy, x), name)


@CHECKED
def test_gradients_are_slopes(mesh, check):
    """On eight devices, of every collective of sin(x), along some directions; the slopes are numpy's, in f64."""
    rows = all_rows()
    x = RNG.normal(size=(8 * SHAPE[0], SHAPE[1])).astype(np.float32)
    weights = {name: RNG.normal(size=looped(numpy, x).shape).astype(np.float32) for name, (_, numpy) in rows.items()}

    @sw.jit
    def gradients(x, weights):
        found = {}
        for name, (ours, _) in rows.items():
            region = mapped(mesh, lambda x, ours=ours: ours(jnp.sin(x)), check)
            found[name] = sw.grad(lambda x, region=region, name=name: (region(x) * weights[name]).sum())(x)
        return found

    check_slopes(gradients(x, weights), {name: numpy for name, (_, numpy) in rows.items()}, x, weights, looped)


def check_slopes(gradients, rows, x, weights, looped):
    for name, numpy in rows.items():
        for direction in RNG.normal(size=(3, *x.shape)):

            def loss(step, name=name, numpy=numpy, direction=direction):
                moved = np.sin(x.astype(np.float64) + step * direction)
                return (looped(numpy, moved) * weights[name].astype(np.float64)).sum()

            slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
            got = (np.asarray(gradients[name], np.float64) * direction).sum()
            assert abs(got - slope) < 2e-4 * max(1.0, abs(slope)), f"{name}: gradient {got}, slope {slope}"


def test_vmap_around_and_inside(mesh):
    """Three at a time: around the region, inside of it, and inside along another dim."""
    rows = all_rows()
    x = RNG.normal(size=(3, 8 * SHAPE[0], SHAPE[1])).astype(np.float32)

    def three_ways(x):
        each = {name: ours for name, (ours, _) in rows.items()}
        around = sw.vmap(mapped(mesh, lambda x: {name: ours(x) for name, ours in each.items()}))(x)
        inside = mapped(
            mesh,
            lambda x: {name: sw.vmap(ours)(x) for name, ours in each.items()},
            in_specs=P(None, ("x", "y")),
            out_specs=P(None, ("x", "y")),
        )(x)
        last = mapped(
            mesh,
            lambda x: {name: sw.vmap(ours, 1, 1)(x) for name, ours in each.items()},
            in_specs=P(("x", "y")),
            out_specs=P(("x", "y")),
        )(jnp.moveaxis(x, 0, 1))
        return around, inside, last

    around, inside, last = simulated(three_ways, mesh.abstract, x)
    for name, (_, numpy) in rows.items():
        wanted = np.stack([looped(numpy, one) for one in x])
        close(around[name], wanted, name)
        close(inside[name], wanted, name)
        close(last[name], np.moveaxis(wanted, 0, 1), name)


def test_vmap_along_an_axis_of_the_mesh(mesh):
    """The axis is no longer the region's: members lie along it, and nothing is sent over it."""
    region = sw.shard_map(
        lambda w, x: jnp.tanh(x @ lax.all_gather(w, "y", tiled=True)), mesh=mesh, in_specs=(P("y"), P()), out_specs=P()
    )
    w, x = RNG.normal(size=(4, 8, 8)).astype(np.float32), RNG.normal(size=(4, 6, 8)).astype(np.float32)
    wanted = np.tanh(np.einsum("sij,sjk->sik", x, w))
    lies = NamedSharding(mesh, P("x", "y")), NamedSharding(mesh, P("x"))

    @sw.jit
    def both(w, x):
        y, pull = sw.vjp(sw.vmap(region, spmd_axis_name="x"), w, x)
        return y, pull(y)

    y, (dw, _) = both(*map(sw.device_put, (w, x), lies))
    close(y, wanted, "result")
    close(dw, np.einsum("sij,sik->sjk", x, wanted * (1 - wanted**2)), "gradient")
    assert y.sharding.is_equivalent_to(lies[1], 3)
    collectives = both.lower(*map(sw.device_put, (w, x), lies)).compile().plan.collectives
    assert {axis for one in collectives for axis in one.axes} == {"y"}
    uneven = sw.vmap(region, spmd_axis_name="x")(w[:3], x[:3])  # three members along four devices, eagerly
    close(uneven, wanted[:3], "uneven")
    assert uneven.sharding.spec == P("x")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("y", "axis 'y' cuts its arguments or results already"),
        ("x", "it computes along axis 'x'"),
        ("z", "the mesh x=4, y=2 has no axis 'z'. Its axes are 'x', 'y'."),
    ],
)
def test_vmap_along_an_axis_that_the_region_needs(mesh, name, why):
    region = sw.shard_map(
        lambda x: x + lax.axis_index("x"), mesh=mesh, in_specs=P("y"), out_specs=P("y"), check_vma=False
    )
    with pytest.raises(sw.errors.ShardingError) as caught:
        sw.vmap(region, spmd_axis_name=name)(np.ones((4, 8), np.float32))
    assert str(caught.value) == f"vmap with spmd_axis_name={(name,)} does not fit the shard_map inside: {why}"


def members(numpy, stacked):
    """Where members lie side by side along two dims: what all have in the end, so too."""
    flat = stacked.reshape(-1, *stacked.shape[2:])
    found = np.stack(numpy(DEVICES, list(flat)))
    return found.reshape(4, 2, *found.shape[1:])


def test_along_the_axes_of_vmap():
    rows = all_rows()
    x = RNG.normal(size=(4, 2, *SHAPE)).astype(np.float32)

    def along_both(f):
        return sw.vmap(sw.vmap(f, axis_name="y"), axis_name="x")

    weights = {name: RNG.normal(size=members(numpy, x).shape).astype(np.float32) for name, (_, numpy) in rows.items()}

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
        close(values[name], members(numpy, x), name)
    check_slopes(gradients, {name: numpy for name, (_, numpy) in rows.items()}, x, weights, members)


@pytest.mark.parametrize("outer", ["x", "y"])
def test_along_an_axis_of_vmap_and_one_of_the_mesh(outer):
    """One of the names is a region's, the other a vmap's in it."""
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

    cut = P("x") if outer == "x" else P(None, "y")
    found = simulated(mapped(mesh, body, in_specs=cut, out_specs=cut), mesh, x)
    for name, (_, numpy) in rows.items():
        close(found[name], members(numpy, x), name)


def test_trees_numbers_and_sizes(mesh):
    seen = []

    def f(x):
        seen.extend([lax.psum(1, "x"), lax.psum(2.5, ("x", "y")), lax.psum(1, "x", axis_index_groups=[[0, 1], [2, 3]])])
        seen.extend([lax.axis_size("x"), lax.axis_size(("y", "x")), lax.pmean(3, "y")])
        total = lax.psum({"a": x, "b": (x.sum(), 2)}, ("x", "y"))
        moved = lax.ppermute([x, x[0]], "y", [(0, 1), (1, 0)])
        return total, moved, lax.pmax((x, -x), "x")

    specs = (P(), [P(("x", "y")), P(("x", "y"))], P("y"))
    x = RNG.normal(size=(8, 3)).astype(np.float32)
    total, moved, largest = sw.jit(mapped(mesh, f, out_specs=specs))(x)
    assert seen == [4, 20.0, 2, 4, 8, 3.0]
    close(total["a"], x.reshape(8, 1, 3).sum(0))
    close(total["b"][0], x.sum())
    assert int(total["b"][1]) == 16
    swapped = x.reshape(4, 2, 3)[:, ::-1].reshape(8, 3)
    close(moved[0], swapped)
    close(moved[1], swapped.reshape(24))
    close(largest[0], x.reshape(4, 2, 3).max(0))
    close(largest[1], -x.reshape(4, 2, 3).min(0))


@pytest.mark.parametrize("dtype", DTYPES, ids=[np.dtype(dtype).name for dtype in DTYPES])
def test_dtypes(mesh, dtype):
    x = (RNG.normal(size=(16, 4)) * 3).astype(np.float32).astype(np.int8).astype(dtype)
    moving = ["all_gather, tiled along x", "all_to_all, tiled along y x", "ppermute, of some along x"]
    reducing = ["psum along x", "psum_scatter, tiled along y"]
    if np.dtype(dtype).kind != "c" and dtype is not np.bool_:
        reducing += ["pmax along y x", "pmin along x"]
    if dtype is np.bool_:
        reducing = reducing[:1]
    rows = {
        f"{row} along {what}": pair
        for what in ("x", "y", "y x")
        for row, pair in table(tuple(what.split()), None).items()
    }
    chosen = {name: rows[name] for name in (*moving, *reducing)}
    found = sw.jit(mapped(mesh, lambda x: {name: ours(jnp.tile(x, (4, 1))) for name, (ours, _) in chosen.items()}))(x)
    for name, (_, numpy) in chosen.items():
        pieces = [np.tile(piece, (4, 1)) for piece in DEVICES.cut(x, (("x", "y"),))]
        wanted = DEVICES.join(numpy(DEVICES, pieces), (("x", "y"),))
        assert found[name].dtype == wanted.dtype
        np.testing.assert_array_equal(np.asarray(found[name]), wanted, name)


def test_the_largest_of_what_is_not_a_number(mesh):
    x = np.array([1, np.nan, 3, -np.inf, np.inf, 0.0, -0.0, 2], np.float32)
    largest, smallest = sw.jit(
        mapped(mesh, lambda x: (lax.pmax(x, ("x", "y")), lax.pmin(x, "y")), out_specs=(P(), P("x")))
    )(x)
    assert np.isnan(np.asarray(largest)).all()
    np.testing.assert_array_equal(np.asarray(smallest), [np.nan, -np.inf, 0, -0.0])


# How much is sent. Derivatives of what types know to be one value for all devices send nothing.


def counts(function, *args):
    return sw.jit(function).lower(*args).plan.counts()


@pytest.fixture(scope="module")
def placed(mesh):
    def put(shape, *spec):
        return sw.device_put(np.ones(shape, np.float32), NamedSharding(mesh, P(*spec)))

    return put


PLANNED = {
    # what it does; the collectives of it; of its gradient, checked; and unchecked
    "psum": (
        (lambda x: lax.psum(jnp.sin(x), ("x", "y")), ALL, P()),
        {"all_reduce": 1},
        {"all_reduce": 1},
        {"all_reduce": 2},
    ),
    "pmean": (
        (lambda x: lax.pmean(jnp.sin(x), "x"), P("x"), P()),  # unchecked, the copies along y are summed too
        {"all_reduce": 1},
        {"all_reduce": 1},
        {"all_reduce": 3},
    ),
    "all_gather": (
        (lambda x: lax.all_gather(jnp.sin(x), ("x", "y"), tiled=True), ALL, ALL),
        {"all_gather": 1},
        {"all_gather": 1, "reduce_scatter": 1},
        {"all_gather": 1, "reduce_scatter": 1},
    ),
    "all_gather to one value": (
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
    "what is one value already": (
        (lambda x: jnp.sin(x) * lax.axis_index("x"), P(), P("x")),
        {},
        {"all_reduce": 1},
        {"all_reduce": 1},
    ),
}


def forward_and_back(region):
    """With a cotangent that lies as the result does."""

    def both(x, cotangent):
        y, pull = sw.vjp(region, x)
        return y, pull(cotangent)

    return both


@pytest.mark.parametrize("name", PLANNED)
def test_how_many_collectives_are_planned(mesh, placed, name):
    (f, in_specs, out_specs), forward, checked, unchecked = PLANNED[name]
    x = placed((64, 4), *in_specs)
    region = mapped(mesh, f, True, in_specs, out_specs)
    assert counts(region, x) == forward
    cotangent = placed(sw.eval_shape(region, x).shape, *out_specs)
    for check, wanted in ((True, checked), (False, unchecked)):
        region = mapped(mesh, f, check, in_specs, out_specs)
        assert counts(forward_and_back(region), x, cotangent) == wanted, check


def test_a_sum_and_its_derivative_are_one_all_reduce(mesh, placed):
    region = mapped(mesh, lambda x: lax.psum(jnp.sin(x).sum(), ("x", "y")), out_specs=P())
    x = placed((64, 4), ("x", "y"))
    assert counts(region, x) == {"all_reduce": 1}
    assert counts(sw.grad(region), x) == {}  # cos(x) needs nobody
    assert counts(sw.value_and_grad(region), x) == {"all_reduce": 1}


def pulled(region):
    """The gradients of half the sum of squares, without the sum."""

    def gradients(*args):
        y, pull = sw.vjp(region, *args)
        return pull(y)

    return gradients


def test_gathered_weights_are_gathered_once_and_their_gradients_scattered(mesh, placed):
    """FSDP: the derivative with respect to x needs the weight again, and keeps it."""

    def layer(x, w):
        return jnp.tanh(x @ lax.all_gather(w, ("x", "y"), tiled=True))

    region = mapped(mesh, layer, in_specs=(ALL, ALL))
    x, w = placed((16, 8), ("x", "y")), placed((8, 8), ("x", "y"))
    assert counts(pulled(region), x, w) == {"all_gather": 1, "reduce_scatter": 1}
    remat = mapped(mesh, sw.checkpoint(layer), in_specs=(ALL, ALL))
    assert counts(pulled(remat), x, w) == {"all_gather": 2, "reduce_scatter": 1}


def test_replicated_weights_have_one_sum_of_gradients(mesh, placed):
    region = mapped(mesh, lambda x, w: jnp.tanh(x @ w), in_specs=(ALL, P()))
    x, w = placed((16, 8), ("x", "y")), placed((8, 8))
    assert counts(pulled(region), x, w) == {"all_reduce": 1}


def test_the_bytes_of_groups_are_those_of_their_size(mesh, placed):
    def sent(groups):
        region = mapped(mesh, lambda x: lax.psum(x, "x", axis_index_groups=groups))
        return sw.jit(region).lower(placed((64, 4), ("x", "y"))).plan.wire_bytes

    piece = 8 * 4 * 4
    assert sent(None) == 2 * piece * 3 / 4
    assert sent([[0, 3], [1, 2]]) == 2 * piece / 2
    assert sent([[0], [1], [2], [3]]) == 0
