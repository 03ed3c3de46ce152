"""Symbolic shapes of exported functions."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import export
from shardwise.errors import ProgramError, UnsupportedError
from shardwise.sharding import NamedSharding, PartitionSpec


def exported(function, *shapes, **options):
    scope = export.SymbolicScope(options.pop("constraints", ()))
    structs = [sw.ShapeDtypeStruct(export.symbolic_shape(shape, scope=scope), np.float32) for shape in shapes]
    return export.export(sw.jit(function), **options)(*structs)


def test_shapes():
    assert str(export.symbolic_shape("b, 2*b + 1, 3")) == "(b, 2*b + 1, 3)"
    assert str(export.symbolic_shape("(a, floordiv(a, 2))")) == "(a, floordiv(a, 2))"
    assert str(export.symbolic_shape("b, _, ...", like=(None, 4, 5, 6))) == "(b, 4, 5, 6)"
    assert export.symbolic_shape("", like=()) == ()
    assert export.symbolic_shape(None, like=(1, 2)) == (1, 2)
    assert [export.is_symbolic_dim(size) for size in export.symbolic_shape("b, 3")] == [True, False]


@pytest.mark.parametrize(
    ("spec", "options", "match"),
    [
        ("b, _", {}, "'_' in 'b, _' needs a size in `like`"),
        ("..., b", {"like": (1, 2)}, "must be last"),
        ("b, 3", {"like": (1, 4)}, "has a dim of size 3, but `like` has 4"),
        ("b", {"like": (1, 4)}, "has 1 dims, but `like` has 2"),
        ("b/2", {}, "must consist of"),
        (3, {}, "must be a string or None"),
        ("b", {"constraints": "b >= 2"}, "must be a sequence of strings"),
        ("b", {"constraints": ["b > 2"]}, "must have the form"),
        ("b", {"constraints": ["b >= 2"], "scope": export.SymbolicScope()}, "either a scope or constraints"),
    ],
)
def test_wrong_shapes(spec, options, match):
    with pytest.raises(ValueError, match=match):
        export.symbolic_shape(spec, **options)


def test_specs_of_arguments():
    x, y = export.symbolic_args_specs((jnp.ones((8, 3)), jnp.ones(8, jnp.int32)), ("b, _", "b"))
    assert (str(x.shape), x.dtype, str(y.shape), y.dtype) == ("(b, 3)", np.float32, "(b,)", np.int32)


def test_results_depend_on_the_sizes():
    function = exported(lambda x, y: (jnp.concatenate([x, y, y]), (x[:, None] * y).reshape(-1)), "a", "b")
    assert str(function.out_avals) == "(f32[a + 2*b], f32[a*b])"
    for sizes in ((2, 3), (1, 1), (5, 4)):
        x, y = (np.arange(size, dtype=np.float32) for size in sizes)
        joined, product = export.deserialize(function.serialize()).call(x, y)
        np.testing.assert_array_equal(np.asarray(joined), np.concatenate([x, y, y]))
        np.testing.assert_array_equal(np.asarray(product), np.outer(x, y).reshape(-1))


def test_a_size_from_an_argument_without_elements():
    (k,) = export.symbolic_shape("k", constraints=["k <= 10"])
    numbers = np.arange(20, dtype=np.int32).reshape(2, 10)
    largest = sw.jit(lambda sizes, x: sw.lax.top_k(x, sizes.shape[1])[0])
    exported = export.export(largest)(sw.ShapeDtypeStruct((0, k), np.int32), numbers)
    assert exported.call(np.zeros((0, 3), np.int32), numbers).tolist() == [[9, 8, 7], [19, 18, 17]]


def test_a_loop_over_a_symbolic_dim_of_the_carry():
    function = exported(lambda x: sw.lax.fori_loop(0, 3, lambda _, c: c * 2 + x.shape[0], x), "b")
    np.testing.assert_array_equal(np.asarray(function.call(np.zeros(5, np.float32))), [35] * 5)


def test_a_symbolic_function_is_planned_for_a_mesh(mesh):
    function = export.deserialize(exported(lambda x: x * 2, "b, 4").serialize())
    x = sw.device_put(np.ones((8, 4), np.float32), NamedSharding(mesh, PartitionSpec("data")))
    assert function.call(x).sharding == x.sharding


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (lambda x: x[: x.shape[0] // 2], r"stablehlo.slice at .*a size is no polynomial of the variables: 3 for b = 7"),
        (lambda x: x if x.shape[0] > 20 else x + 1, r"the ops of the function depend on the size"),
        (lambda x: x * (1 / x.shape[0]), r"stablehlo.constant at .*a constant depends on the size: 0.142"),
        (
            lambda x: jnp.asarray(np.arange(x.shape[0], dtype=np.float32) ** 2) * x,
            "a constant array depends on the size",
        ),
    ],
)
def test_other_dependences_on_the_size(function, match):
    with pytest.raises(UnsupportedError, match=match):
        exported(function, "b")


def test_combinations_that_are_not_supported():
    for options in ({"partitioned": True}, {"platforms": ["cpu", "cuda"]}):
        with pytest.raises(UnsupportedError, match="symbolic dims cannot be combined"):
            exported(jnp.sin, "b", **options)


def test_calls_with_other_sizes():
    function = exported(lambda x, y: x + y[::2], "b, 3", "2*b, 3", constraints=["b <= 512", "mod(b, 2) == 0"])
    ones = np.ones((4, 3), np.float32)
    np.testing.assert_array_equal(np.asarray(function.call(ones, np.ones((8, 3), np.float32))), 2 * ones)
    with pytest.raises(
        ValueError, match=r"exported for f32\[b,3\] as argument args\[0\], but is called with f32\[4,2\]"
    ):
        function.call(ones[:, :2], ones)
    with pytest.raises(ValueError, match=r"a dim of size 9 is no '2\*b', since other dims imply b = 4"):
        function.call(ones, np.ones((9, 3), np.float32))
    with pytest.raises(ValueError, match=r"with the constraint 'mod\(b, 2\) == 0', but is called with b = 3"):
        function.call(ones[:3], np.ones((6, 3), np.float32))
    with pytest.raises(ProgramError, match=r"do not fit the module: .*must satisfy mod\(b, 2\) == 0"):
        export.deserialize(function.serialize()).call(ones[:3], np.ones((6, 3), np.float32))


def test_different_scopes_are_an_error():
    (a,), (b,) = export.symbolic_shape("a"), export.symbolic_shape("b")
    structs = [sw.ShapeDtypeStruct((size,), np.float32) for size in (a, b)]
    with pytest.raises(ValueError, match="'a' and 'b' belong to different scopes"):
        export.export(sw.jit(lambda x, y: x.sum() + y.sum()))(*structs)


def test_constraints_may_leave_too_few_sizes():
    with pytest.raises(ValueError, match=r"leave only 2 of the sizes that are tried for b, and 5 are needed"):
        exported(jnp.sin, "b", constraints=["b <= 2"])
