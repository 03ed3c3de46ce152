"""`shardwise.core`: types of arrays as `jax.core` has them, and their state along Manual axes."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.core import ShapedArray, Tracer
from shardwise.extend import core as extend_core
from shardwise.sharding import AxisType, NamedSharding
from shardwise.sharding import PartitionSpec as P


@pytest.mark.jax
@pytest.mark.parametrize(
    ("shape", "dtype", "weak"), [((8, 4), np.float32, False), ((), np.int32, True), ((3,), np.complex64, False)]
)
def test_shaped_array_has_the_attributes_of_jax(shape, dtype, weak):
    jax = pytest.importorskip("jax")
    ours, theirs = ShapedArray(shape, dtype, weak), jax.core.ShapedArray(shape, dtype, weak)
    for name in ("shape", "dtype", "ndim", "size", "weak_type"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.str_short() == theirs.str_short()
    assert ours.str_short(short_dtypes=True) == theirs.str_short(short_dtypes=True)
    assert ours.update(shape=(2, 3), dtype=np.float32).str_short() == "float32[2,3]"
    assert ours.update(weak_type=True).weak_type


def test_shaped_array_is_the_class_of_all_types():
    x = jnp.ones((2, 3))
    assert isinstance(sw.typeof(x), ShapedArray) and not isinstance(x, ShapedArray)
    assert ShapedArray((2, 3), jnp.float32) is sw.typeof(x) is sw.core.typeof(x)
    seen = []
    sw.jit(lambda x: seen.append(isinstance(x, Tracer)) or x)(x)
    assert seen == [True]


def test_shaped_array_shows_its_sharding_along_explicit_axes():
    mesh = sw.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit, AxisType.Auto))
    type = ShapedArray((8, 4), jnp.float32, sharding=NamedSharding(mesh, P("x", "y")))
    assert str(type) == "f32[8@x,4]" and type.sharding.spec == P("x", None)
    assert str(type.update(sharding=NamedSharding(mesh, P(None, "x")))) == "f32[8,4@x]"
    assert str(type.update(dtype=jnp.int32)) == "i32[8@x,4]" and str(type.update(shape=(8,))) == "f32[8]"


def test_types_show_the_axes_over_which_values_vary():
    mesh = sw.make_mesh((4, 2), ("x", "y"))
    seen = []

    def f(a):
        seen.extend([sw.typeof(a), sw.typeof(lax.psum(a, "x")), sw.typeof(lax.psum(a, ("x", "y")))])
        return a

    sw.shard_map(f, mesh=mesh, in_specs=P("x", "y"), out_specs=P("x", "y"))(jnp.ones((8, 4)))
    assert list(map(str, seen)) == ["f32[2,2]{V:(x,y)}", "f32[2,2]{V:y}", "f32[2,2]"]
    assert [type.mat.varying for type in seen] == [{"x", "y"}, {"y"}, frozenset()]
    assert [type.vma for type in seen] == [type.mat.varying for type in seen]
    assert seen[0].mat.unreduced == seen[0].mat.reduced == frozenset()


def test_meshes_say_whether_all_their_axes_have_one_type():
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = sw.make_mesh((4, 2), ("x", "y"), axis_types=(kind, kind)).abstract
        assert (mesh.are_all_axes_auto, mesh.are_all_axes_explicit, mesh.are_all_axes_manual) == (
            kind is AxisType.Auto,
            kind is AxisType.Explicit,
            False,
        )
    assert mesh.update_axis_types({"x": AxisType.Manual, "y": AxisType.Manual}).are_all_axes_manual
    assert not mesh.update_axis_types({"x": AxisType.Manual}).are_all_axes_explicit


def test_all_dims_are_constant():
    assert all(sw.core.is_constant_dim(d) for d in jnp.ones((2, 3)).shape)


@pytest.mark.parametrize("name", ["Effect", "concrete_or_error", "unsafe_am_i_under_a_jit_DO_NOT_USE"])
def test_names_that_moved_to_extend_are_deprecated(name):
    with pytest.warns(DeprecationWarning, match=rf"jax\.core\.{name} is deprecated: use jax\.extend\.core\.{name}"):
        assert getattr(sw.core, name) is getattr(extend_core, name)


def test_bound_axis_names_and_jit_are_visible_to_functions():
    seen = []

    def note(x):
        seen.append(
            (
                extend_core.unsafe_am_i_under_a_jit_DO_NOT_USE(),
                extend_core.unsafe_get_axis_names_DO_NOT_USE(),
                extend_core.nonempty_axis_env_DO_NOT_USE(),
            )
        )
        return x

    x = jnp.ones((2, 3))
    note(x)
    sw.jit(note)(x)
    sw.vmap(sw.vmap(note, axis_name="columns"), axis_name="rows")(x)
    assert seen == [(False, [], False), (True, [], False), (False, ["rows", "columns"], True)]
