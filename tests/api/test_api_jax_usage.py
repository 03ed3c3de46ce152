"""Behaviour that programs written for JAX rely on."""

import copy
import math
import pickle
from functools import partial

import numpy as np
import pytest

import shardwise as jax
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


def test_tracers_are_instances_of_array():
    for kind in (jax.Array, jnp.ndarray):
        assert isinstance(jnp.ones(2), kind)
        seen = []
        jax.jit(lambda x, kind=kind, seen=seen: (seen.append(isinstance(x, kind)), x)[1])(1.0)
        assert seen == [True]
        assert not isinstance(np.ones(2), kind)


def test_jit_on_methods():
    class Model:
        scale = 3.0

        @partial(jax.jit, static_argnums=0)
        def apply(self, x):
            return x * self.scale

    assert float(Model().apply(2.0)) == 6.0


def test_python_numbers_out_of_range_raise():
    for make in (
        lambda: jnp.array(2**31),
        lambda: jnp.array([-1], dtype=jnp.uint8),
        lambda: jnp.array(300, dtype=jnp.uint8),
        lambda: jnp.asarray([2**33]),
    ):
        with pytest.raises(OverflowError):
            make()


def test_python_numbers_are_weakly_typed():
    assert (jnp.array(3.0) * jnp.ones(2, jnp.bfloat16)).dtype == jnp.bfloat16
    assert (jnp.asarray(2) * jnp.ones(2, jnp.int8)).dtype == np.int8
    assert (jnp.full((2,), 2.0) * jnp.ones(2, jnp.bfloat16)).dtype == jnp.bfloat16
    assert (jnp.array([3.0]) * jnp.ones(1, jnp.bfloat16)).dtype == np.float32


def test_nondifferentiated_arguments_can_be_any_object():
    assert float(jax.grad(lambda x, s: x * 2 if s == "a" else x)(1.0, "a")) == 2.0
    assert float(jax.value_and_grad(lambda x, f: f(x))(0.0, jnp.exp)[1]) == 1.0
    assert float(jax.grad(lambda x, k=None: x * x if k else x)(3.0, k="q")) == 6.0
    with pytest.raises(TypeError, match="needs an array or a number, not 'a'"):
        jax.grad(lambda s: s)("a")


def test_like_functions_keep_the_sharding(mesh):
    x = jax.device_put(np.ones((8, 8), np.float32), NamedSharding(mesh, P("data", "model")))
    for like in (jnp.zeros_like, jnp.ones_like, partial(jnp.full_like, fill_value=3)):
        assert like(x).sharding == x.sharding
    assert jnp.zeros_like(jax.device_put(1.0, jax.devices()[3])).devices() == {jax.devices()[3]}


def test_in_shardings_with_keyword_arguments_raise(mesh):
    f = jax.jit(lambda x: x * 2, in_shardings=NamedSharding(mesh, P("data")))
    with pytest.raises(
        TypeError, match=r": in_shardings applies to positional arguments only, but `x` was passed by keyword"
    ):
        f(x=np.ones(8, np.float32))


def test_array_copies_and_asarray_does_not():
    x = jnp.ones(4)
    copied, same = jnp.array(x), jnp.asarray(x)
    assert same is x
    jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    assert not copied.is_deleted()
    np.testing.assert_array_equal(copied, np.ones(4))


@jax.jit
def doubled(x):
    return x * 2


def test_jitted_functions_are_copied_and_pickled():
    doubled(1.0)  # without the compiled programs
    assert pickle.loads(pickle.dumps(doubled)) is doubled is copy.deepcopy(doubled)
    made = jax.jit(math.sqrt, static_argnums=0)
    made(4.0)
    again = pickle.loads(pickle.dumps(made))
    assert again is not made and again.function is math.sqrt and again.options == made.options
    assert float(again(9.0)) == 3.0
    called = pickle.loads(pickle.dumps(jax.jit(partial(math.pow, 2.0), static_argnums=0)))
    assert float(called(3.0)) == 8.0


def test_deepcopy_and_pickle(mesh):
    x = jax.device_put(np.arange(10.0, dtype=np.float32), NamedSharding(mesh, P("data")))
    again = copy.deepcopy(x)
    assert again.sharding == x.sharding and again is not x
    restored = pickle.loads(pickle.dumps(x))
    np.testing.assert_array_equal(restored, x)
    assert restored.dtype == x.dtype


def test_deleted_captured_array_is_named():
    captured = jnp.ones(3)
    f = jax.jit(lambda x: x + captured)
    f(1.0)
    captured.delete()
    with pytest.raises(RuntimeError, match=r"an array that `<lambda>` closes over is a f32\[3\] whose memory"):
        f(2.0)


def test_eval_shape_of_a_jit_with_static_arguments():
    f = jax.jit(lambda x, n: jnp.ones((n,)) * x, static_argnums=1)
    assert jax.eval_shape(f, 1.0, 3).shape == (3,)


def test_linear_transpose_of_nonlinear_functions_raises():
    for f, name in ((lambda x: x * x, "mul"), (jnp.exp, "exp")):
        with pytest.raises(TypeError, match=rf"`{name}` at .* is not linear in the operands"):
            jax.linear_transpose(f, jnp.ones(3))(jnp.ones(3))


def test_jit_of_the_same_function_shares_its_cache():
    traced = []

    def g(x):
        traced.append(x)
        return x * 2

    for _ in range(3):
        jax.jit(g)(1.0)
    assert len(traced) == 1
    jax.jit(g, inline=True)(1.0)
    assert len(traced) == 2  # other options


def test_invalid_shapes_and_meshes_raise():
    with pytest.raises(jax.errors.ConcretizationTypeError, match="Python needs an integer here"):
        jax.jit(lambda n: jnp.ones((n,)))(3)
    with pytest.raises(TypeError):
        jnp.ones(2.5)
    with pytest.raises(jax.errors.ShardingError, match="a mesh needs one name per axis"):
        jax.make_mesh((4,), ("a", "b"))
    with pytest.raises(TypeError, match="visualize_array_sharding needs an array"):
        jax.debug.visualize_array_sharding(np.ones(3))
    with pytest.raises(TypeError, match="cotangent 0 is i32"):
        jax.vjp(lambda x: x * 2, 3.0)[1](1)
