"""vmap, compared with loops."""

from functools import partial

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.errors import ShardingError
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

RNG = np.random.default_rng(0)
A = RNG.normal(size=(4, 3)).astype(np.float32)
B = RNG.normal(size=(3, 4)).astype(np.float32)


@pytest.mark.parametrize("wrap", [lambda f: f, sw.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(("in_axes", "rows"), [((0, 1), (4, 4)), ((1, 0), (3, 3)), ((-1, -2), (3, 3))])
def test_in_axes(wrap, in_axes, rows):
    def f(a, b):
        return jnp.exp(a) * b.sum() + a

    got = wrap(sw.vmap(f, in_axes=in_axes))(A, B)
    a, b = np.moveaxis(A, in_axes[0], 0), np.moveaxis(B, in_axes[1], 0)
    np.testing.assert_allclose(got, [np.exp(x) * y.sum() + x for x, y in zip(a, b, strict=True)], rtol=1e-5)


def test_pytrees_of_axes_and_unmapped_arguments():
    def f(p, x):
        assert p["w"].shape == (3,)
        return {"y": p["w"] * x, "w": p["w"]}

    out = sw.vmap(f, in_axes=({"w": None}, 0), out_axes={"y": 1, "w": None})({"w": A[0]}, B[0])
    np.testing.assert_allclose(out["y"], np.outer(A[0], B[0]), rtol=1e-6)
    np.testing.assert_array_equal(out["w"], A[0])


def test_a_container_that_converts_what_it_holds():
    class Holder:
        def __init__(self, array):
            self.array = jnp.asarray(array)

    sw.tree_util.register_pytree_node(Holder, lambda x: ((x.array,), None), lambda _, leaves: Holder(*leaves))
    result = sw.vmap(lambda x: x, out_axes=1)(Holder(jnp.ones((5, 2))))
    assert result.array.shape == (2, 5)


def test_python_if_on_an_unmapped_value():
    out = sw.vmap(lambda x, positive: x if positive > 0 else -x, in_axes=(0, None))(A, 1.0)
    np.testing.assert_array_equal(out, A)


def test_nested_with_grad_and_jit():
    def loss(w, x):
        return (sw.jit(lambda z: jnp.exp(z * w))(x)).sum()

    got = sw.vmap(sw.grad(loss), in_axes=(None, 0))(A[0], A)
    np.testing.assert_allclose(got, A * np.exp(A * A[0]), rtol=1e-5)
    hessian_diagonal = sw.vmap(sw.grad(sw.grad(lambda x: x * x * x)))(A[0])
    np.testing.assert_allclose(hessian_diagonal, 6 * A[0], rtol=1e-5)


def test_vmap_of_vmap_is_an_outer_product():
    outer = sw.vmap(sw.vmap(lambda x, y: x * y, in_axes=(None, 0)), in_axes=(0, None))(A[0], B[0])
    np.testing.assert_allclose(outer, np.outer(A[0], B[0]), rtol=1e-6)


def test_result_that_does_not_depend_on_the_mapped_argument():
    out = sw.vmap(lambda x: (x, 3.0, jnp.ones(2)))(A[0])
    np.testing.assert_array_equal(out[1], [3, 3, 3])
    np.testing.assert_array_equal(out[2], np.ones((3, 2)))


def test_on_eight_devices(mesh):
    x = sw.device_put(A, NamedSharding(mesh, P("data")))
    y = sw.jit(sw.vmap(lambda row: row / row.sum()))(x)
    np.testing.assert_allclose(y, A / A.sum(1, keepdims=True), rtol=1e-5)
    assert y.sharding.spec == P("data")


def test_keywords_are_mapped_over_their_first_dim():
    out = sw.vmap(lambda x, *, scale, bias: x * scale["s"] + bias, in_axes=1)(B, scale={"s": A[:, 0]}, bias=A[:, 1])
    np.testing.assert_allclose(out, B.T * A[:, :1] + A[:, 1:2], rtol=1e-6)


def test_as_a_decorator():
    @sw.vmap
    def doubled(x):
        """Twice `x`."""
        assert x.shape == (3,)
        return x + x

    @partial(sw.vmap, in_axes=(0, None), out_axes=1)
    def shifted(x, y):
        return x + y

    np.testing.assert_array_equal(doubled(A), 2 * A)
    assert (doubled.__name__, doubled.__doc__) == ("doubled", "Twice `x`.")
    np.testing.assert_array_equal(shifted(A, A[0]), (A + A[0]).T)


def test_unmapped_arguments_are_passed_unchanged():
    class Config:
        depth = 3

    seen = []

    def f(x, config, mode, options, number, table):
        seen.extend([config, mode, options, number, table])
        for _ in range(config.depth + number):
            x = x * 2 if options["double"] else x
        return x if mode == "train" else -x

    config, table = Config(), A[0]
    args = (config, "train", {"double": True, "skip": None}, 2, table)
    out = sw.vmap(f, in_axes=(0, *[None] * 5))(A, *args)
    np.testing.assert_array_equal(out, 32 * A)
    assert seen[0] is config and seen[4] is table
    assert seen[1:4] == ["train", {"double": True, "skip": None}, 2]
    assert type(seen[3]) is int
    # One pytree can hold both.
    out = sw.vmap(lambda t: t["x"] * len(t["name"]), in_axes=({"x": 0, "name": None},))({"x": A, "name": "four"})
    np.testing.assert_array_equal(out, 4 * A)


@pytest.mark.parametrize("wrap", [lambda f: f, sw.jit], ids=["eager", "jit"])
def test_axis_size_without_mapped_arguments(wrap):
    out = wrap(sw.vmap(lambda x: x + 1, in_axes=None, axis_size=5))(A[0])
    np.testing.assert_array_equal(out, np.tile(A[0] + 1, (5, 1)))
    out = wrap(sw.vmap(lambda: jnp.arange(2), axis_size=3, out_axes=1))()
    np.testing.assert_array_equal(out, [[0, 0, 0], [1, 1, 1]])
    out = wrap(sw.vmap(lambda x: x, in_axes=None, out_axes=None, axis_size=7))(A)
    np.testing.assert_array_equal(out, A)
    np.testing.assert_array_equal(wrap(sw.vmap(lambda x: x * 2, axis_size=4))(A), 2 * A)
    assert wrap(sw.vmap(lambda x: x * 2, axis_size=0))(A[:0]).shape == (0, 3)


def message_of(error_type, function, *args, **keywords):
    with pytest.raises(error_type) as caught:
        function(*args, **keywords)
    assert type(caught.value) is error_type
    return str(caught.value)


def first(x, y=None):
    return x


HERE = f"`first` (test_vmap.py:{first.__code__.co_firstlineno})"


def test_different_sizes_raise():
    assert message_of(ValueError, sw.vmap(first, axis_size=5), A, B) == (
        f"vmap of {HERE}: all mapped axes must have the same size:\n  `x` has 4\n  `y` has 3\n  axis_size is 5"
    )
    assert message_of(ValueError, sw.vmap(first, axis_size=5), A) == (
        f"vmap of {HERE}: all mapped axes must have the same size:\n  `x` has 4\n  axis_size is 5"
    )
    assert message_of(ValueError, sw.vmap(first, in_axes=None), A) == (
        f"vmap of {HERE}: in_axes maps no argument, so the size of the mapped axis is unknown: map at least one "
        "argument, or pass axis_size"
    )


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        (
            {"in_axes": 1.0},
            "in_axes must be an integer, None, or a tuple with one entry per positional argument (pytrees of "
            "integers and None), not 1.0",
        ),
        (
            {"in_axes": ("i", 0)},
            "in_axes must be an integer, None, or a tuple with one entry per positional argument (pytrees of "
            "integers and None), not ('i', 0)",
        ),
        (
            {"in_axes": {"x": 0}},
            "in_axes must be an integer, None, or a tuple with one entry per positional argument (pytrees of "
            "integers and None), not {'x': 0}",
        ),
        ({"axis_size": -1}, "axis_size must be a nonnegative integer, not -1"),
        ({"axis_size": 2.0}, "axis_size must be a nonnegative integer, not 2.0"),
        ({"axis_name": ["i"]}, "axis_name must be hashable, not ['i']"),
        (
            {"spmd_axis_name": 3},
            "spmd_axis_name must be the name of a mesh axis, or a tuple of distinct names, not 3",
        ),
        (
            {"spmd_axis_name": ("a", "a")},
            "spmd_axis_name must be the name of a mesh axis, or a tuple of distinct names, not ('a', 'a')",
        ),
    ],
    ids=str,
)
def test_parameters_of_wrong_types_raise(keywords, text):
    assert message_of(TypeError, sw.vmap, first, **keywords) == f"vmap of {HERE}: {text}"


def test_invalid_input_raises():
    assert message_of(TypeError, sw.vmap, 3) == "vmap needs a function, not 3"
    assert message_of(TypeError, sw.vmap(first), A, "abc") == (
        f"vmap of {HERE}: in_axes maps axis 0 of `y`, which is 'abc' of type str: only arrays can be mapped. "
        "Use None for it in in_axes to pass it through unchanged."
    )
    assert message_of(ValueError, sw.vmap(first), A, y=2.0).endswith(
        "in_axes maps axis 0 of `y`, which is f32[]~ and has rank 0\n"
        "  `~` marks a weak type, that of a Python number: in promotion, the dtype of an array wins."
    )


def constrained(mesh, spec, **keywords):
    def f(row):
        return sw.lax.with_sharding_constraint(row * 2, NamedSharding(mesh, spec))

    return sw.jit(sw.vmap(f, **keywords))


def test_spmd_axis_name_shards_the_batch_dim(mesh):
    x = RNG.normal(size=(8, 6)).astype(np.float32)
    for name, spec in (("data", P("data", "model")), (("data",), P("data", "model"))):
        y = constrained(mesh, P("model"), spmd_axis_name=name)(x)
        np.testing.assert_array_equal(y, 2 * x)
        assert y.sharding.spec == spec
    y = constrained(mesh, P(None), spmd_axis_name=("model", "data"), out_axes=1)(x)
    np.testing.assert_array_equal(y, 2 * x.T)
    assert y.sharding.spec == P(None, ("model", "data"))
    odd = RNG.normal(size=(5, 3)).astype(np.float32)
    y = constrained(mesh, P("model"), spmd_axis_name="data")(odd)
    np.testing.assert_array_equal(y, 2 * odd)
    assert y.sharding.spec == P("data", "model")


def test_spmd_axis_name_of_nested_vmaps(mesh):
    x = RNG.normal(size=(4, 2, 6)).astype(np.float32)

    def f(row):
        return sw.jit(lambda r: sw.lax.with_sharding_constraint(r * 2, NamedSharding(mesh, P(None))))(row)

    y = sw.jit(sw.vmap(sw.vmap(f, spmd_axis_name="model"), spmd_axis_name="data"))(x)
    np.testing.assert_array_equal(y, 2 * x)
    assert y.sharding.spec == P("data", "model")


def test_invalid_spmd_axis_names_raise(mesh):
    assert message_of(ShardingError, constrained(mesh, P("data"), spmd_axis_name="data"), A) == (
        "vmap with spmd_axis_name=('data',) is incompatible with a with_sharding_constraint inside: "
        "axis 'data' already shards dim 0"
    )
    assert message_of(ShardingError, constrained(mesh, P("data"), spmd_axis_name="rows"), A) == (
        "vmap with spmd_axis_name=('rows',) is incompatible with a with_sharding_constraint inside: "
        "the mesh data=4, model=2 has no axis 'rows'. Its axes are 'data', 'model'."
    )


def test_indexing_in_an_empty_batch():
    x, index = np.zeros((0, 4, 3), np.float32), np.zeros(0, np.int32)
    for f in (lambda x, i: x[i], lambda x, i: x[:, i], lambda x, i: x.at[i].set(1.0)):
        assert sw.vmap(f)(x, index).shape == (0, *sw.eval_shape(f, x[:0].reshape(-1, 4, 3).sum(0), np.int32(0)).shape)
