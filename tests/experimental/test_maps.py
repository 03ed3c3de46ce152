"""Compare xmap with numpy functions of positional dims."""

from functools import partial

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.errors import ShardingError, UnboundAxisError
from shardwise.experimental import maps
from shardwise.experimental.maps import xmap
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 3)).astype(np.float32)
Y = RNG.normal(size=(4, 3, 2)).astype(np.float32)


def close(actual, expected):
    assert np.shape(actual) == np.shape(expected)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def counts(function, *args):
    """Return the number of collectives of each kind, on the mesh in force."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.print", lambda *_: None)
        return sw.explain(sw.jit(function).lower(*args), advise=False)().counts()


def test_documented_example():
    """Seed 001: the sum of each row."""
    f = xmap(lambda x: x.sum(), in_axes=["batch", "features"], out_axes=["batch"])
    close(f(X), X.sum(1))


# Positions of names.


def test_lists_and_dicts_name_dims():
    for axes, inner_shape in (
        (["a", ...], (3, 2)),
        (["a", "b", ...], (2,)),
        (["a", "b", "c"], ()),
        (["a", None, "c"], (3,)),
        ([None, "b", ...], (4, 2)),
        (("a", ...), (3, 2)),
        ({1: "b"}, (4, 2)),
        ({2: "c", 0: "a"}, (3,)),
        ({}, (4, 3, 2)),
        ([...], (4, 3, 2)),
    ):
        seen = []

        def noted(x, seen=seen):
            seen.append(x.shape)
            return 2 * x

        close(xmap(noted, in_axes=axes, out_axes=axes)(Y), 2 * Y)
        assert seen == [inner_shape]


def test_out_axes_position_the_named_dims():
    def twice(x):
        return 2 * x

    close(xmap(twice, ["a", ...], {1: "a"})(Y), 2 * np.swapaxes(Y, 0, 1))
    close(xmap(twice, ["a", ...], [None, None, "a"])(Y), 2 * np.moveaxis(Y, 0, 2))
    close(xmap(twice, {2: "c", 0: "a"}, ["c", "a", ...])(Y), 2 * Y.transpose(2, 0, 1))
    close(xmap(lambda x: x.sum(0), {0: "a"}, {0: "a"})(Y), Y.sum(1))
    close(xmap(lambda x: 1.0, ["a", ...], ["a"])(X), np.ones(4))  # does not vary along the name: broadcast
    close(xmap(lambda x, y: y, (["a", ...], {}), [None, "a"])(X, X[0]), np.repeat(X[0][:, None], 4, 1))


def test_arguments_and_results_in_pytrees():
    tree = {"x": X, "ys": [Y, Y + 1]}
    axes = {"x": ["a", ...], "ys": {1: "b"}}

    def mixed(tree, scale):
        return {"sum": tree["x"] * scale, "pair": (tree["ys"][0] + tree["ys"][1],)}

    out = xmap(mixed, in_axes=[axes, {}], out_axes={"sum": ["a", ...], "pair": {1: "b"}})(tree, 3.0)
    close(out["sum"], 3 * X)
    close(out["pair"][0], 2 * Y + 1)
    close(xmap(lambda x, y: (x, y), ["a", ...], ["a", ...])(X, Y)[1], Y)  # one entry for all


def test_products_of_names():
    a, b = RNG.normal(size=(2, 5, 3)), RNG.normal(size=(7, 3))
    vectors = xmap(jnp.vdot, in_axes=({0: "i", 1: "j"}, ["k", ...]), out_axes=["k", "i", "j"])
    close(vectors(a.astype(np.float32), b.astype(np.float32)), np.einsum("ijd,kd->kij", a, b))
    by_name = xmap(lambda x, y: lax.psum(x * y, "d"), (["i", "j", "d"], ["k", "d"]), ["i", "j", "k"])
    close(by_name(a.astype(np.float32), b.astype(np.float32)), np.einsum("ijd,kd->ijk", a, b))


SIZES = {"a": 2, "b": 3, "c": 4, "d": 5}


@pytest.mark.parametrize("seed", range(20))
def test_random_contractions_match_einsum(seed, mesh):
    """The sum over some names of a product of two arrays, with names in random order and random axis_resources."""
    rng = np.random.default_rng(seed)
    letters = [list(rng.permutation(list(SIZES))[: rng.integers(1, 5)]) for _ in range(2)]
    names = sorted({*letters[0], *letters[1]})
    summed = [name for name in names if rng.random() < 0.4]
    kept = list(rng.permutation([name for name in names if name not in summed]))
    arrays = [rng.normal(size=[SIZES[name] for name in axes]).astype(np.float32) for axes in letters]
    in_axes = [axes if rng.random() < 0.5 else dict(enumerate(axes)) for axes in letters]
    free = [name for name in names if name not in summed]
    resources = {free[0]: "data"} if free else {}
    if len(names) > 1 and names[-1] not in resources:
        resources[names[-1]] = "model"

    def product(x, y):
        assert x.shape == y.shape == ()
        return lax.psum(x * y, tuple(summed)) if summed else x * y

    with mesh:
        out = xmap(product, tuple(in_axes), kept or {}, axis_resources=resources)(*arrays)
    text = f"{''.join(letters[0])},{''.join(letters[1])}->{''.join(kept)}"
    close(out, np.einsum(text, *arrays))
    if kept:
        entries = [resources.get(name) for name in kept]
        assert out.sharding.is_equivalent_to(NamedSharding(mesh, P(*entries)), len(kept))


# Collectives and reductions along names.


def test_collectives_along_names():
    def collectives(x):  # f32[2], along a of 4 and b of 3
        return {
            "sum": lax.psum(x, "a"),
            "both": lax.psum(x, ("a", "b")),
            "mean": x - lax.pmean(x, "b"),
            "max": lax.pmax(x, "a"),
            "gather": lax.all_gather(x, "b"),
            "index": lax.axis_index("a") * lax.axis_size("b") + lax.axis_index("b"),
            "passed": lax.ppermute(x, "a", [(k, (k + 1) % 4) for k in range(4)]),
        }

    both = ["a", "b", ...]
    axes = {"sum": ["b", ...], "both": {}, "max": ["b", ...], "gather": ["a", ...], "index": ["a", "b"]}
    out = xmap(collectives, both, axes | {"mean": both, "passed": both})(Y)
    close(out["sum"], Y.sum(0))
    close(out["both"], Y.sum((0, 1)))
    close(out["mean"], Y - Y.mean(1, keepdims=True))
    close(out["max"], Y.max(0))
    close(out["gather"], Y)
    close(out["index"], np.arange(12).reshape(4, 3))
    close(out["passed"], np.roll(Y, 1, 0))


def test_reductions_along_names():
    def reduced(x):
        return [
            jnp.sum(x, "a"),
            x.sum(axis=("a", 0)),
            jnp.mean(x, axis=["b", "a"]),
            jnp.max(x, "b"),
            jnp.min(x, (0, "b"), keepdims=True),
            jnp.var(x, "a"),
            jnp.std(x, ("a", 0), ddof=1),
            jnp.all(x > 0, "a"),
            jnp.any(x > 1, "a"),
            jnp.mean(x, "a", where=x > -0.5),
        ]

    axes = [["b", ...], ["b"], {}, ["a", ...], ["a", ...], ["b", ...], ["b"], ["b", ...], ["b", ...], ["b", ...]]
    out = xmap(reduced, ["a", "b", ...], axes)(Y)
    expected = [
        *(Y.sum(0), Y.sum((0, 2)), Y.mean((0, 1)), Y.max(1), Y.min((1, 2))[:, None]),
        *(Y.var(0), Y.std((0, 2), ddof=1), (Y > 0).all(0), (Y > 1).any(0), Y.mean(0, where=Y > -0.5)),
    ]
    for one, other in zip(out, expected, strict=True):
        close(one, other)
    with pytest.raises(UnboundAxisError, match="unbound axis name 'c'"):
        xmap(lambda x: jnp.sum(x, "c"), ["a", ...], ["a", ...])(X)


def test_names_that_no_argument_has():
    close(xmap(lambda: lax.axis_index("k"), (), ["k"], axis_sizes={"k": 5})(), np.arange(5))
    grid = xmap(lambda x: x * lax.axis_index("k"), ["a", ...], ["k", "a", ...], axis_sizes={"k": 2})
    close(grid(X), np.stack([0 * X, X]))
    close(xmap(lambda x: x, ["a", ...], ["a", "k", ...], axis_sizes={"k": 2})(X), np.repeat(X[:, None], 2, 1))
    close(xmap(lambda x: x, ["a", ...], ["a", ...], axis_sizes={"a": 4})(X), X)


# Names that `fun` does not use.


def test_reductions_over_all_dims_reduce_names_without_out_axes():
    rows = partial(xmap, in_axes=["batch", "features"], out_axes=["batch"])
    for reduce in ("sum", "mean", "max", "min", "prod", "std"):
        close(rows(lambda x, reduce=reduce: getattr(x, reduce)())(X), getattr(X, reduce)(1))
    close(rows(lambda x: jnp.sqrt((x * x).sum()) / x.size)(X), np.linalg.norm(X, axis=1) / 3)
    close(xmap(lambda x: x.sum(), ["a", "b", "c"], {})(Y), Y.sum())
    close(xmap(lambda x: x.max(), ["a", "b", ...], ["b"])(Y), Y.max((0, 2)))
    close(xmap(lambda x: x.max(), {0: "a", 2: "c"}, {0: "c"})(Y), Y.max((0, 1)))
    total, largest = xmap(lambda x, y: (x.sum(), lax.pmax(y, "c")), (["b", "a"], ["c"]), (["b"], {}))(X.T, X[:, 0])
    close(total, X.sum(0))
    close(largest, X[:, 0].max())


def test_effects_run_once(capsys):
    def noisy(x):
        sw.debug.print("sum of {}", x.size)
        return x.sum()

    close(xmap(noisy, ["a", "b"], {})(X), X.sum())
    sw.effects_barrier()
    assert capsys.readouterr().out == "sum of 12\n"


@pytest.mark.parametrize(
    ("function", "axes", "results"),
    [
        (lambda x: 2 * x, ["batch", "features"], ["batch"]),  # nothing reduces
        (lambda x: x + x.sum(), ["batch", "features"], ["batch", ...]),
        (lambda x: x * lax.psum(x, "features"), ["batch", "features"], ["batch"]),  # used, and not reduced
        (lambda x: x * np.ones(3, np.float32), ["batch", "features"], ["batch", ...]),  # mistaken for another dim
        (lambda x: (x.sum(), x), ["batch", "features"], (["batch"], ["batch", "features"])),  # another result has it
    ],
    ids=["kept", "both", "used", "mistaken", "elsewhere"],
)
def test_results_that_vary_along_other_names_raise(function, axes, results):
    with pytest.raises(ValueError, match=r"varies along 'features', which out_axes .* do not have\. Reduce over it"):
        xmap(function, axes, results)(X)


# On a mesh.


def linear(w, b, x):
    """A linear layer for one row and one output feature; `k` is summed."""
    return jnp.tanh(lax.psum(w * x, "k") + b)


def test_axis_resources_shard_named_dims(mesh):
    x, w, b = (RNG.normal(size=shape).astype(np.float32) for shape in ((8, 16), (16, 6), (6,)))
    axes = {"in_axes": (["k", "n"], ["n"], ["row", "k"]), "out_axes": ["row", "n"]}
    expected = np.tanh(x @ w + b)
    for resources, spec, expected_counts in (
        ({"row": "data"}, P("data"), {}),
        ({"row": "data", "n": "model"}, P("data", "model"), {}),
        ({"k": "model"}, P(), {"all_reduce": 1}),
        ({"row": "data", "k": "model"}, P("data"), {"all_reduce": 1}),
        ({"row": ("data", "model"), "n": ()}, P(("data", "model")), {}),
    ):
        layer = xmap(linear, **axes, axis_resources=resources)
        with mesh:
            out = layer(w, b, x)
            assert counts(layer, w, b, x) == expected_counts
        close(out, expected)
        assert out.sharding == NamedSharding(mesh, spec)
    with mesh:
        gradient = sw.grad(lambda w: layer(w, b, x).sum())(w)
    close(gradient, x.T @ (1 - expected**2))


def test_uneven_dims_and_arguments_with_another_sharding(mesh):
    x = RNG.normal(size=(7, 5)).astype(np.float32)
    centred = xmap(lambda x: x - lax.pmean(x, "a"), ["a", ...], ["a", ...], axis_resources={"a": "data"})
    with mesh:
        out = centred(sw.device_put(x, NamedSharding(mesh, P(None, "data"))))
    close(out, x - x.mean(0))
    assert out.sharding.spec == P("data")


def test_reduced_names_stay_sharded(mesh):
    """A reduction over a sharded name is a local sum and one all-reduce."""
    x = RNG.normal(size=(8, 16)).astype(np.float32)
    total = xmap(lambda x: x.sum(), ["batch", "k"], ["batch"], axis_resources={"batch": "data", "k": "model"})
    with mesh:
        out = total(x)
        assert counts(total, x) == {"all_reduce": 1}
    close(out, x.sum(1))
    assert out.sharding.spec == P("data")


# With other transformations.


def test_nested():
    def outer(x):  # f32[3,2], along a
        inner = xmap(lambda y: y - lax.pmean(lax.pmean(y, "b"), "a"), ["b", ...], ["b", ...])
        return inner(x) + lax.psum(1, "a")

    close(xmap(outer, ["a", ...], ["a", ...])(Y), Y - Y.mean((0, 1)) + 4)
    hidden = xmap(xmap(lambda y: lax.psum(y, "a"), ["a", ...], {}), ["a", ...], ["a", ...])
    close(hidden(Y), Y.sum(1))  # the inner xmap binds the name


def test_nested_on_a_mesh(mesh):
    inner = xmap(lambda y: lax.psum(y, "b"), ["b", ...], {}, axis_resources={"b": "model"})
    outer = xmap(inner, ["a", ...], ["a", ...], axis_resources={"a": "data"})
    with mesh:
        close(outer(Y), Y.sum(1))
        clash = xmap(inner, ["a", ...], ["a", ...], axis_resources={"a": "model"})
        with pytest.raises(ShardingError, match="'b' to the mesh axis 'model', which an enclosing xmap uses for 'a'"):
            clash(Y)
        close(inner(Y[0]), Y[0].sum(0))  # the axis is free again


def test_derivatives():
    def loss(w, x, y):
        return lax.pmean((jnp.dot(x, w) - y) ** 2, "batch")

    mapped = xmap(loss, ({}, ["batch", ...], ["batch"]), {})
    w, y = X[0], X[:, 1]
    residual = X @ w - y
    close(mapped(w, X, y), (residual**2).mean())
    close(sw.grad(mapped)(w, X, y), 2 * (residual[:, None] * X).mean(0))
    close(sw.jit(sw.grad(mapped, 1))(w, X, y), 2 * residual[:, None] * w / 4)
    close(sw.jvp(lambda w: mapped(w, X, y), (w,), (w,))[1], (2 * (residual * (X @ w))).mean())
    inside = xmap(sw.grad(lambda x: (x**2).sum()), ["a", ...], ["a", ...])
    close(inside(X), 2 * X)


def test_vmap_of_xmap_and_xmap_of_vmap():
    rows = xmap(lambda x: x.sum(), ["b", "c"], ["b"])
    close(sw.vmap(rows)(Y), Y.sum(2))
    close(sw.vmap(rows, 1)(Y), Y.sum(2).T)
    named = sw.vmap(xmap(lambda x: lax.psum(x, ("z", "b")), ["b", ...], {}), axis_name="z")
    close(named(Y), np.broadcast_to(Y.sum((0, 1)), (4, 2)))
    close(xmap(sw.vmap(lambda x: x * lax.psum(x, "a")), ["a", ...], ["a", ...])(X), X * X.sum(0))


def test_a_function_is_traced_once_per_shape():
    traced = []

    def noted(x):
        traced.append(x.shape)
        return x + 1

    mapped = xmap(noted, ["a", ...], ["a", ...])
    for _ in range(3):
        close(mapped(X), X + 1)
    close(mapped(Y), Y + 1)
    assert traced == [(3,), (3, 2)]


def test_donated_arguments_are_deleted():
    mapped = xmap(lambda x: x + 1, ["a", ...], ["a", ...], donate_argnums=0)
    donated = jnp.asarray(X)
    close(mapped(donated), X + 1)
    assert donated.is_deleted()


# Errors.


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: xmap(3, {}, {}), "xmap needs a function, not 3"),
        (lambda f: xmap(f, "a", {}), "in_axes: an entry must be a list such as ['batch', ...] or a dict"),
        (lambda f: xmap(f, (["a"], "a"), {})(X, X), "not 'a'. For an array without named dims, write {}"),
        (lambda f: xmap(f, {}, ()), "out_axes () have no entry"),
        (lambda f: xmap(f, (["a"], None), {})(X), "not None. For an array without named dims, write {}"),
        (lambda f: xmap(f, [..., "a"], {}), "`...` is only allowed at the end of a list"),
        (lambda f: xmap(f, {-1: "a"}, {}), "in_axes {-1: 'a'}: dims must not be negative, but -1 is"),
        (lambda f: xmap(f, ["a", "a"], {}), "the dims of an array must have distinct names, but 'a' repeats"),
        (lambda f: xmap(f, ["a"], ["z"]), "out_axes has the unknown name 'z', which is in neither in_axes nor"),
        (lambda f: xmap(f, ["a"], {}, axis_resources={"z": "x"}), "axis_resources has the unknown name 'z', which is"),
        (
            lambda f: xmap(f, ["a"], {}, axis_sizes={"k": "3"}),
            "the size of 'k' in axis_sizes must be an integer >= 0, not '3'",
        ),
        (lambda f: xmap(f, ["a"], {}, axis_resources={"a": 3}), "'a' to 3: pass the name of a mesh axis"),
        (lambda f: xmap(f, ["a"], {}, axis_resources={"a": ("x", "x")}), "in which an axis repeats"),
        (
            lambda f: xmap(f, ["a", "b"], {}, axis_resources={"a": "x", "b": "x"}),
            "maps both 'a' and 'b' to the mesh axis 'x', and ['a', 'b'] has both: a mesh axis can shard only one dim",
        ),
        (lambda f: xmap(f, ["a"], {}, backend="tpu"), "backend 'tpu' is not supported: leave it out"),
        (
            lambda f: xmap(f, ["a"], ["a"])(x=X),
            "accepts positional arguments only, not 'x': in_axes are matched by position",
        ),
        (
            lambda f: xmap(f, ["a"], ["a"])(X),
            "in_axes ['a'] do not match `x`, f32[4,3] of rank 2. A list must have one entry",
        ),
        (lambda f: xmap(f, {2: "a"}, {})(X), "in_axes {2: 'a'} do not match `x`, f32[4,3] of rank 2."),
        (lambda f: xmap(f, (["a", ...],) * 2, {})(X), "in_axes do not match.\n  in_axes: tuple of length 2 against"),
        (lambda f: xmap(f, ["a", ...], (["a"],) * 2)(X), "out_axes do not match.\n  out_axes: tuple"),
        (
            lambda f: xmap(lambda x, y: x, (["a", ...], ["a"]), ["a", ...], axis_sizes={"a": 4})(X, X[0]),
            "all dims with the name 'a' must have the same size:\n  axis_sizes has 4\n  `x` has 4\n  `y` has 3",
        ),
        (
            lambda f: xmap(f, ["a", ...], ["a"])(X),
            "out_axes ['a'] do not match result 0, which is f32[3] and has rank 2 with its named dims. A list must",
        ),
        (lambda f: xmap(f, ["a", ...], {5: "a"})(X), "out_axes {5: 'a'} do not match result 0, which is f32[3]"),
        (
            lambda f: xmap(f, ["a", ...], ["a", ...], axis_resources={"a": "data"})(X),
            "axis_resources maps 'a' to the mesh axis 'data', but no mesh is in force.",
        ),
    ],
)
def test_invalid_arguments_raise(call, message):
    with pytest.raises((TypeError, ValueError, NotImplementedError)) as caught:
        call(lambda x: x)
    assert message in str(caught.value)
    assert "xmap" in str(caught.value)


def test_unknown_mesh_axes_raise(mesh):
    mapped = xmap(lambda x: x, ["a", ...], ["a", ...], axis_resources={"a": "date"})
    with mesh, pytest.raises(ShardingError, match="'a' to 'date', but the mesh data=4, model=2 has no axis 'date'"):
        mapped(X)


def test_unknown_names_of_the_module_raise():
    with pytest.raises(AttributeError, match=r"shardwise\.experimental\.maps has no attribute 'ResourceEnv'"):
        maps.ResourceEnv  # noqa: B018


@pytest.mark.parametrize("resource", [maps.SerialLoop(2), "steps", ("data", "steps"), ("data", maps.SerialLoop(2))])
def test_serial_loops(mesh, resource):
    """The steps of a loop compute slices of the dims of a name."""
    sizes = []

    def square(x):
        sizes.append(lax.axis_size("b"))
        return x * x, x.sum()

    x = np.arange(48.0, dtype=np.float32).reshape(3, 8, 2)
    mapped = xmap(square, {1: "a"}, ({0: "a"}, ["a"]), axis_sizes={"b": 5}, axis_resources={"a": resource})
    with mesh, maps.serial_loop("steps", 4):
        squares, sums = mapped(x)
    np.testing.assert_array_equal(squares, (x * x).transpose(1, 0, 2))
    np.testing.assert_array_equal(sums, x.sum((0, 2)))
    assert sizes == [5]  # traced once
    program = sw.make_jaxpr(mapped)(x) if resource == maps.SerialLoop(2) else None
    assert program is None or "length=2" in str(program)


def test_errors_of_serial_loops():
    x = np.arange(6.0)
    loop = {"axis_resources": {"i": maps.SerialLoop(2)}}
    with pytest.raises(ValueError, match="'i' is computed in steps of a serial loop, so the function must not use it"):
        xmap(lambda x: lax.psum(x, "i"), ["i"], {}, **loop)(x)
    with pytest.raises(ValueError, match="of result 0 do not have 'i', which is computed in steps"):
        xmap(lambda x: 1.0, ["i"], {}, **loop)(x)
    with pytest.raises(ValueError, match="a serial loop of 4 steps does not divide the size 6 of 'i'"):
        xmap(lambda x: x, ["i"], ["i"], axis_resources={"i": maps.SerialLoop(4)})(x)
    with pytest.raises(ValueError, match="serial_loop: the length must be a positive integer, not 0"):
        maps.serial_loop("steps", 0).__enter__()


def test_equal_xmaps_are_traced_once():
    traces = []

    def double(x):
        traces.append(x.shape)
        return x * 2

    for _ in range(3):
        close(xmap(double, ["a", ...], ["a", ...])(Y), Y * 2)
    assert len(traces) == 1
    close(xmap(double, {1: "a"}, ["a", ...])(Y), np.swapaxes(Y, 0, 1) * 2)
    assert len(traces) == 2


def test_lower_compiles_ahead_of_time():
    mapped = xmap(lambda x: lax.psum(x, "a"), ["a", ...], {})
    compiled = mapped.lower(sw.ShapeDtypeStruct(Y.shape, Y.dtype)).compile()
    close(compiled(Y), Y.sum(0))
