"""Checks of functions and arguments, as in JAX."""

import copy

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.errors import TangentMismatchError


def test_copies_of_tracers():
    assert sw.jit(lambda x: copy.deepcopy({"a": x}))(1)["a"] == 1
    assert sw.grad(lambda x: copy.copy(x) * 2.0)(1.0) == 2.0


def test_masked_arrays_raise():
    x = np.ma.array([1, 2, 3], mask=[True, False, True])
    for call in (sw.jit(lambda x: x), jnp.sin, sw.device_put):
        with pytest.raises(ValueError, match="masked arrays are not supported"):
            call(x)


def test_functions_that_cannot_be_traced():
    def generator(x):
        yield x

    for transformation in (sw.jit, sw.grad, sw.vmap):
        with pytest.raises(TypeError, match="not the generator function"):
            transformation(generator)
    with pytest.raises(TypeError, match="needs a function, not <staticmethod"):
        sw.jit(staticmethod(len))


def test_names_of_arguments_that_have_no_name():
    def f(a, /, b, *args, **kwargs):
        return b

    for name in ("a", "args"):
        with pytest.raises(ValueError, match=f"static_argnames of `f` .* has '{name}'"):
            sw.jit(f, static_argnames=(name, "b"))
    assert sw.jit(f, static_argnames=("b", "other"))(1, b=2, other=3) == 2


def test_names_of_variadic_arguments_in_plans():
    def f(a, *args, b, **keywords):
        return a + args[0]["x"] + args[1] + b + keywords["u"][0]

    def all_variadic(*args, **keywords):
        return args[0] + args[1] + keywords["u"]

    explanation = sw.explain(f)(1.0, {"x": 2.0}, 3.0, b=4.0, u=[5.0])
    assert [row.name for row in explanation.plan.inputs] == ["`a`", "`args[0]['x']`", "`args[1]`", "`b`", "`u[0]`"]
    explanation = sw.explain(all_variadic)(1.0, 2.0, u=3.0)
    assert [row.name for row in explanation.plan.inputs] == ["`args[0]`", "`args[1]`", "`u`"]


def test_jitted_functions_have_the_attributes_of_the_function():
    def f(x):
        return x

    f.tag = "a tag"
    assert sw.jit(f).tag == "a tag"
    assert sw.jit(sw.jit(f)).tag == "a tag"


def test_arrays_of_python_scalars_are_not_shared_if_they_can_be_deleted():
    x = sw.device_put(1.5)
    x.delete()
    assert float(sw.device_put(1.5)) == 1.5
    assert bool(jnp.ones(()) < 1.5)


def test_device_put_returns_a_committed_array_with_this_sharding_itself(mesh):
    rows = sw.NamedSharding(mesh, sw.P("data"))
    x = sw.device_put(np.arange(8), rows)
    assert sw.device_put(x, rows) is x and sw.device_put(x) is x
    assert sw.device_put(x, rows, may_alias=False) is not x


def test_large_integers_fit_floats():
    assert lax.convert_element_type(2**100, jnp.float32) == np.float32(2.0**100)


def test_mismatched_derivatives_are_type_and_value_errors():
    _, pullback = sw.vjp(lambda x: x, jnp.ones(2))
    _, pushforward = sw.linearize(lambda x: x, jnp.ones(2))
    for call in (pullback, pushforward):
        for wrong in (jnp.ones(3), (jnp.ones(2), 1.0), jnp.ones(2, jnp.float16)):
            with pytest.raises(TangentMismatchError) as raised:
                call(wrong)
            assert isinstance(raised.value, TypeError) and isinstance(raised.value, ValueError)


def test_linear_transpose_of_integers_and_of_abstract_arguments():
    (cotangent,) = sw.linear_transpose(lambda x: 2 * x, 1)(3)
    assert (int(cotangent), cotangent.dtype) == (6, np.int32)
    (cotangent,) = sw.linear_transpose(lambda x: 2 * x, sw.ShapeDtypeStruct((3,), jnp.float32))(jnp.arange(3.0))
    np.testing.assert_array_equal(cotangent, [0, 2, 4])
    with pytest.raises(TypeError, match=r"all of floating or complex dtypes, or all of integers, not i32\[\]~ and f32"):
        sw.linear_transpose(lambda x: 2.0 * x, 1)


def test_python_numbers_match_dtypes_of_their_kind():
    assert sw.linear_transpose(lambda x: 2 * x, jnp.float16(1))(3.0)[0] == 6
    for function, cotangent in ((lambda x: x, 1j), (lambda x: 1j * x, 1.0), (lambda x: x, 1)):
        with pytest.raises(TypeError, match=r"linear_transpose of `<lambda>` .*: cotangent 0 is"):
            sw.linear_transpose(function, 1.0)(cotangent)


def test_shardings_on_the_same_devices_need_no_transfer(mesh):
    x = sw.device_put(np.arange(8), sw.NamedSharding(mesh, sw.P("data")))
    wider = sw.sharding.Mesh(mesh.devices[None], ("one", "data", "model"))
    with sw.transfer_guard_device_to_device("disallow_explicit"):
        y = sw.device_put(x, sw.NamedSharding(wider, sw.P(("one", "data"))))
        reversed_mesh = sw.sharding.Mesh(mesh.devices[::-1], ("data", "model"))
        z = sw.device_put(x, sw.NamedSharding(reversed_mesh, sw.P("model")))
    assert y.sharding.mesh == wider and z.sharding.mesh == reversed_mesh
    assert z.tolist() == list(range(8))


def test_eval_shape_has_out_shardings(mesh):
    rows = sw.NamedSharding(mesh, sw.P("data"))
    assert sw.jit(lambda x: x * 2, out_shardings=rows).eval_shape(np.arange(8)).sharding == rows
    assert sw.jit(lambda x: x * 2).eval_shape(np.arange(8)).sharding is None


def test_hlo_text():
    lowered = sw.jit(lambda x: x + 1).lower(1.0)
    assert lowered.as_text("hlo").startswith("HloModule")
