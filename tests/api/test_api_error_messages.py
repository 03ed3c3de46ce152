"""Messages of frequent mistakes: what is wrong, where, and what to write instead."""

import re
import traceback

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax, random
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


def scale(params, flag, unused):
    total = (params["w"] * 2).sum()
    if total > flag:
        return total
    return -total


def test_a_traced_condition_names_the_arguments_that_it_depends_on():
    with pytest.raises(
        sw.errors.TracerBoolConversionError, match=r"depends on the arguments `params\['w'\]`, `flag`\."
    ):
        sw.jit(scale)({"w": jnp.ones(3), "b": jnp.ones(2)}, 1.0, 2)


def test_a_traced_number_names_the_argument():
    with pytest.raises(sw.errors.ConcretizationTypeError, match=r"It depends on the argument `b`\."):
        sw.jit(lambda a, b: a + float(b * 2))(1.0, 2.0)


def test_only_the_first_arguments_are_named():
    with pytest.raises(sw.errors.TracerBoolConversionError, match=r"`xs\[0\]`, .*`xs\[3\]`, 9 in all"):
        sw.jit(lambda xs: 1 if sum(xs) > 0 else 2)([1.0] * 9)


def test_values_of_other_frames_have_no_such_sentence():
    with pytest.raises(sw.errors.TracerBoolConversionError) as error:
        lax.scan(lambda carry, x: (carry if x > 0 else -carry, x), 0.0, jnp.ones(3))
    assert "depends on" not in str(error.value)


@pytest.mark.parametrize("key", [(3,), None, [2, 3]])
@pytest.mark.parametrize("sampler", [random.normal, random.uniform, random.bits])
def test_a_forgotten_key(sampler, key):
    with pytest.raises(TypeError, match=rf"{sampler.__name__}: the first argument is a key, such as `random.key\(0\)`"):
        sampler(key)


def test_a_donated_array_names_the_call():
    step = sw.jit(lambda x: x + 1, donate_argnums=0)
    x = jnp.ones(3)
    step(x)
    with pytest.raises(
        RuntimeError, match=r"was donated to `<lambda>` by the call at .*test_api_error_messages\.py:\d+"
    ):
        x + 1
    with pytest.raises(RuntimeError, match=r"an array that is read is a .* donated to"):
        np.asarray(x)


def test_a_deleted_array_was_not_donated():
    x = jnp.ones(3)
    x.delete()
    with pytest.raises(RuntimeError, match="`delete` was called"):
        x + 1


def test_a_spec_for_a_scalar():
    mesh = sw.make_mesh((8,), ("x",))
    with pytest.raises(sw.errors.ShardingError, match=re.escape("A scalar is not sharded: its spec is P().")):
        sw.device_put(1.0, NamedSharding(mesh, P("x")))


@pytest.mark.parametrize("transform", [sw.grad, sw.value_and_grad, sw.jacrev])
def test_derivatives_of_integers_name_allow_int(transform):
    with pytest.raises(TypeError, match="pass allow_int=True"):
        transform(lambda n: n * 2.0)(3)


def test_jacrev_of_a_function_with_integer_results():
    with pytest.raises(TypeError, match=r"a result is i32\[\]~?. Results must be floats; use vjp"):
        sw.jacrev(lambda x: 2 * x, allow_int=True)(3)


def test_jacfwd_has_no_allow_int():
    with pytest.raises(TypeError) as error:
        sw.jacfwd(lambda n: n * 2.0)(3)
    assert "allow_int" not in str(error.value)


def test_a_platform_is_no_device():
    with pytest.raises(ValueError, match=re.escape("write `jax.devices('cpu')[0]`")):
        sw.device_put(jnp.ones(3), "cpu")


def test_the_two_conditions_of_slice_sizes():
    x = jnp.ones((4, 4))
    with pytest.raises(TypeError, match=r"f32\[4,4\] has 2 dims, but slice_sizes \(2,\) has 1"):
        lax.dynamic_slice(x, (0, 0), (2,))
    with pytest.raises(TypeError, match=r"dim 1 of f32\[4,4\] has 4 elements, not 5"):
        lax.dynamic_slice(x, (0, 0), (2, 5))


def test_a_misspelled_dtype():
    with pytest.raises(TypeError, match=r"there is no dtype 'float23'\. Did you mean 'float32'"):
        jnp.zeros(3, "float23")
    with pytest.raises(TypeError, match=r"there is no dtype 'xyz'\. Known: bfloat16, "):
        jnp.ones(3).astype("xyz")


def frames(error):
    return [frame.filename.rpartition("/")[2] for frame in traceback.extract_tb(error.value.__traceback__)]


def fails(x):
    raise ValueError("in the callback")


def test_tracebacks_have_one_frame_of_the_package():
    with pytest.raises(ValueError, match="in the callback") as error:
        sw.block_until_ready(sw.jit(lambda x: sw.pure_callback(fails, x, x))(jnp.ones(3)))
    assert frames(error) == ["test_api_error_messages.py", "jit.py", "test_api_error_messages.py"]
    assert error.value.__suppress_context__
    with pytest.raises(sw.errors.TracerBoolConversionError) as error:
        sw.jit(scale)({"w": jnp.ones(3)}, 1.0, 2)
    assert frames(error) == ["test_api_error_messages.py", "jit.py", "test_api_error_messages.py"]
