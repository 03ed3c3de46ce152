"""Errors along Explicit axes: they name the types, and the call that resolves the error; no terms of the planner."""

import re

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.errors import ShardingError, ShardingTypeError
from shardwise.sharding import AxisType, NamedSharding, reshard
from shardwise.sharding import PartitionSpec as P

X = np.ones((8, 4), np.float32)
PLANNER_TERMS = re.compile(r"\b(candidates?|factors?|pin(s|ned)?|plan(s|ned|ner)?)\b")
CALLS = re.compile(r"`(reshard|out_sharding=|device_put|with_sharding_constraint|P)[^`]*`")


def put(*spec, x=X):
    return sw.device_put(x, P(*spec))


def unreduced(x):
    return jnp.dot(x, x.T, out_sharding=P(unreduced={"Y"}))


def other_mesh():
    mesh = sw.make_mesh((2, 4), ("X", "Y"), axis_types=(AxisType.Explicit,) * 2)
    return sw.device_put(X, NamedSharding(mesh, P("X")))


# A call that raises, and words of the message: the types that are involved.
BAD_INPUTS = {
    "conflicting operands": (lambda: sw.jit(jnp.add)(put("X"), put("Y")), ["f32[8@X,4]", "f32[8@Y,4]"]),
    "conflicting operands, eager": (lambda: put("X") + put("Y"), ["f32[8@X,4]", "f32[8@Y,4]"]),
    "ambiguous contraction": (
        lambda: sw.jit(lambda x, y: x @ y.T)(put("X", "Y"), put(None, "Y")),
        ["f32[8@X,4@Y]", "`out_sharding=P('X', 'Y')`", "`out_sharding=P('X', None, unreduced={'Y'})`"],
    ),
    "an axis twice": (
        lambda: sw.jit(lambda x, y: x @ y.T)(put("X"), put("X")),
        ["f32[8@X,4] and f32[4,8@X]", "`reshard(x, P(None, None))`"],
    ),
    "reshape": (lambda: sw.jit(lambda x: x.reshape(2, 16))(put("X", "Y")), ["f32[8@X,4@Y]", "`reshard(x, P("]),
    "a dim that an op needs unsharded": (
        lambda: jnp.linalg.cholesky(put("X", x=np.eye(8, dtype=np.float32))),
        ["f32[8@X,8]", "`reshard(x, P(None, None))`"],
    ),
    "unreduced into a nonlinear op": (
        lambda: sw.jit(lambda x: jnp.sin(unreduced(x)))(put("X", "Y")),
        ["sin", "f32[8,8]{U:Y}", "`reshard(x, P(None, None))`"],
    ),
    "unreduced beside replicated": (
        lambda: sw.jit(lambda x: unreduced(x) + reshard(jnp.ones((8, 8)), P("X")))(put("X", "Y")),
        ["f32[8,8]{U:Y}", "f32[8@X,8]"],
    ),
    "mismatched meshes": (lambda: put("X") + other_mesh(), ["X=4 explicit", "X=2 explicit"]),
    "a constraint that differs from the type": (
        lambda: sw.jit(lambda x: lax.with_sharding_constraint(x, P("Y")))(put("X")),
        ["f32[8@X,4]", "f32[8@Y,4]", "`reshard(x, P('Y'))`"],
    ),
    "in_shardings that differ from the type": (
        lambda: sw.jit(jnp.sin, in_shardings=P("Y"))(put("X")),
        ["f32[8@X,4]", "f32[8@Y,4]", "`reshard(x, P('Y'))`"],
    ),
    "in_shardings of a nested jit": (
        lambda: sw.jit(sw.jit(jnp.sin, in_shardings=P("Y")))(put("X")),
        ["f32[8@X,4]", "f32[8@Y,4]"],
    ),
    "carry of scan": (
        lambda: sw.jit(lambda x: lax.scan(lambda c, _: (reshard(c, P(None, "Y")), None), x, length=3))(put("X")),
        ["f32[8@X,4]", "f32[8,4@Y]", "`reshard(carry, P('X', None))`", "`reshard(init, P(None, 'Y'))`"],
    ),
    "carry of while_loop": (
        lambda: sw.jit(lambda x: lax.while_loop(lambda c: True, lambda c: reshard(c, P("Y")), x))(put("X")),
        ["f32[8@X,4]", "f32[8@Y,4]"],
    ),
    "results of branches": (
        lambda: sw.jit(lambda x: lax.cond(True, jnp.sin, lambda v: reshard(v, P("Y")), x))(put("X")),
        ["f32[8@X,4]", "f32[8@Y,4]", "`reshard(result, P('X', None))`"],
    ),
    "a sharded dim of scan's xs": (
        lambda: sw.jit(lambda x: lax.scan(lambda c, v: (c, v), 0, x))(put("X", "Y")),
        ["f32[8@X,4@Y]", "`reshard(xs, P(None, 'Y'))`"],
    ),
    "mapped dims of vmap": (lambda: sw.vmap(jnp.add)(put("X"), put("Y")), ["f32[8@X,4]", "f32[8@Y,4]"]),
    "a reshape to an unreduced value": (
        lambda: jnp.reshape(put("X"), (4, 8), out_sharding=P(unreduced={"X"})),
        ["f32[4@X,8]", "`reshard(x, P(unreduced={'X'}))`"],
    ),
    "a sum that is unreduced over another axis": (
        lambda: lax.reduce_sum(put("X"), (0,), out_sharding=P(unreduced={"Y"})),
        ["f32[8@X,4]", "unreduced over 'Y'"],
    ),
    "a product that is unreduced over an axis of one operand": (
        lambda: jnp.einsum("ij,jk->ik", put("X", "Y"), put(x=X.T.copy()), out_sharding=P("X", unreduced={"Y"})),
        ["f32[8@X,4@Y] and f32[4,8]", "unreduced over 'Y'"],
    ),
    "an unknown axis": (lambda: reshard(put("X"), P("Z")), ["no axis 'Z'"]),
}


def message_of(call):
    with pytest.raises(ShardingError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_an_error_names_types_and_the_call_that_resolves_it(explicit_mesh, name):
    call, words = BAD_INPUTS[name]
    message = message_of(call)
    assert all(word in message for word in words), message
    assert not PLANNER_TERMS.search(message), message
    assert CALLS.search(message) or name == "an unknown axis", message


@pytest.mark.parametrize("name", ["conflicting operands", "ambiguous contraction", "an axis twice"])
def test_an_error_in_a_traced_function_names_the_lines_of_both_operands(explicit_mesh, name):
    message = message_of(BAD_INPUTS[name][0])
    assert len(re.findall(r"operand [01], f32\[.*\], was created at test_errors.py:\d+", message)) == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda: reshard(put("X"), P(None, "Y")),
        lambda: jnp.zeros((8, 4), out_sharding=P("Y")),
        lambda: sw.jit(lambda x: jnp.dot(x, x.T, out_sharding=P("X", "Y")))(put("X")),
    ],
    ids=["reshard", "zeros", "dot"],
)
def test_a_spec_of_types_over_an_auto_axis_is_an_error(call):
    with sw.set_mesh(sw.make_mesh((4, 2), ("X", "Y"), axis_types=(AxisType.Explicit, AxisType.Auto))):
        message = message_of(call)
        assert "names 'Y', an Auto axis of the mesh X=4 explicit, Y=2" in message
        assert CALLS.search(message) and not PLANNER_TERMS.search(message), message


def test_a_spec_over_a_manual_axis_is_an_error(explicit_mesh):
    region = sw.shard_map(lambda x: reshard(x, P("X")), in_specs=P("X"), out_specs=P("X"), axis_names={"X"})
    message = message_of(lambda: sw.jit(region)(put("X")))
    assert "'X'" in message and "manual" in message and not PLANNER_TERMS.search(message)


def test_a_constraint_over_auto_axes_keeps_the_axes_of_the_type():
    with sw.set_mesh(sw.make_mesh((4, 2), ("X", "Y"), axis_types=(AxisType.Explicit, AxisType.Auto))):
        for spec, expected in [(P("Y"), P(("X", "Y"), None)), (P(None, "Y"), P("X", "Y"))]:
            result = sw.jit(lambda x, spec=spec: lax.with_sharding_constraint(x * 2, spec))(put("X"))
            assert result.sharding.spec == expected
            np.testing.assert_array_equal(result, 2 * X)


def test_errors_are_type_errors_and_value_errors(explicit_mesh):
    for error in (TypeError, ValueError, ShardingTypeError):
        with pytest.raises(error):
            put("X") + put("Y")
