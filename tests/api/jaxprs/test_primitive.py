"""Primitives that users define: their rules under jit, grad, vmap, scan and sharding; errors for missing rules."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.api.jaxprs.primitive import (
    Primitive,
    Zero,
    instantiate_zeros,
    lowerings,
    primitive_batchers,
    primitive_jvps,
    primitive_transposes,
)
from shardwise.compiler.ir.op import UndefinedPrimal
from shardwise.errors import MissingRuleError
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

scale_p = Primitive("scale")  # x * factor, with rules that record their use
used = []


@scale_p.def_impl
def scale_impl(x, *, factor):
    used.append("impl")
    return x * factor


@scale_p.def_abstract_eval
def scale_type(x, *, factor):
    return x


def scale_jvp(primals, tangents, *, factor):
    used.append("jvp")
    (x,), (t,) = primals, tangents
    tangent = Zero(sw.typeof(x)) if isinstance(t, Zero) else scale_p.bind(t, factor=factor)
    return scale_p.bind(x, factor=factor), tangent


def scale_transpose(cotangent, x, *, factor):
    used.append("transpose")
    assert isinstance(x, UndefinedPrimal)
    return [scale_p.bind(cotangent, factor=factor)]


def scale_batch(operands, dims, *, factor):
    used.append("batch")
    return scale_p.bind(operands[0], factor=factor), dims[0]


primitive_jvps[scale_p] = scale_jvp
primitive_transposes[scale_p] = scale_transpose
primitive_batchers[scale_p] = scale_batch
lowerings[scale_p] = lambda x, *, factor: x * factor


def scale(x, factor=3.0):
    return scale_p.bind(x, factor=factor)


X = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.mark.parametrize(
    ("transform", "expected", "rules"),
    [
        (scale, 3 * X, {"impl"}),
        (sw.jit(scale), 3 * X, set()),
        (sw.vmap(scale, in_axes=1, out_axes=1), 3 * X, {"batch"}),
        (sw.grad(lambda x: (scale(x) * x).sum()), 6 * X, {"jvp", "transpose"}),
        (sw.jit(sw.grad(lambda x: scale(scale(x)).sum())), np.full_like(X, 9), {"jvp", "transpose"}),
        (lambda x: sw.jvp(scale, (x,), (x,))[1], 3 * X, {"jvp"}),
        (lambda x: lax.scan(lambda c, row: (scale(c) + row, None), x[0], x)[0], None, set()),
        (sw.vmap(sw.grad(lambda x: scale(x).sum())), np.full_like(X, 3), {"batch", "jvp", "transpose"}),
    ],
)
def test_rules_are_used(transform, expected, rules):
    used.clear()
    result = transform(jnp.asarray(X))
    if expected is None:
        expected = X[0]
        for row in X:
            expected = 3 * expected + row
    np.testing.assert_allclose(result, expected)
    assert set(used) - {"impl"} == rules - {"impl"}


def test_sharded_operands_stay_sharded(mesh):
    x = sw.device_put(X, NamedSharding(mesh, P("data")))
    result = sw.jit(scale)(x)
    assert result.sharding.spec == P("data")
    assert not sw.jit(scale).lower(x).plan.collectives


def test_parameters_that_are_not_hashable():
    pick_p = Primitive("pick")
    pick_p.multiple_results = True
    pick_p.def_impl(lambda x, *, rows: [x[row] for row in rows])
    pick_p.def_abstract_eval(lambda x, *, rows: [sw.ShapeDtypeStruct(x.shape[1:], x.dtype)] * len(rows))
    lowerings[pick_p] = lambda x, *, rows: [x[row] for row in rows]

    def pick(x):
        return pick_p.bind(x, rows=[0, 3])

    for first, last in (pick(jnp.asarray(X)), sw.jit(pick)(X)):
        np.testing.assert_array_equal(first, X[0])
        np.testing.assert_array_equal(last, X[3])


def test_missing_rules_are_errors():
    empty_p = Primitive("empty")
    with pytest.raises(MissingRuleError, match="'empty' has no implementation: define it with `def_impl`"):
        empty_p.bind(1.0)
    with pytest.raises(MissingRuleError, match="has neither `def_abstract_eval` nor a lowering"):
        sw.jit(empty_p.bind)(1.0)
    empty_p.def_abstract_eval(lambda x: x)
    with pytest.raises(MissingRuleError, match="'empty' cannot be compiled: it has no lowering"):
        sw.jit(empty_p.bind)(1.0)
    with pytest.raises(MissingRuleError, match="cannot be differentiated: it has no rule in"):
        sw.grad(empty_p.bind)(1.0)
    with pytest.raises(MissingRuleError, match="cannot be batched"):
        sw.vmap(empty_p.bind)(jnp.ones(2))
    lowerings[empty_p] = lambda x: jnp.stack([x, x])
    with pytest.raises(TypeError, match=r"abstract_eval returns f32\[\]~?, but its lowering computes f32\[2\]"):
        sw.jit(empty_p.bind)(1.0)
    with pytest.raises(TypeError, match="the name must be a string"):
        Primitive(3)


def test_zeros():
    np.testing.assert_array_equal(instantiate_zeros(Zero.from_primal_value(jnp.ones(2))), np.zeros(2))
    assert repr(Zero(sw.typeof(jnp.ones(2)))) == "Zero(f32[2])"


def test_rules_receive_tuples_and_may_map_zeros_over_a_batch():
    """Rules that map other rules pass zeros and undefined primals through vmap, as pytrees without leaves."""
    double_p = Primitive("double")
    double_p.multiple_results = True
    double_p.def_abstract_eval(lambda x, y: [x])
    lowerings[double_p] = lambda x, y: [2 * x]

    def jvp(primals, tangents):
        assert isinstance(primals, tuple) and isinstance(tangents[1], Zero)
        return double_p.bind(*primals), [2 * tangents[0]]

    def batch(operands, dims):
        assert isinstance(operands, tuple) and dims == (0, None)
        return double_p.bind(operands[0], operands[1]), (0,)

    primitive_jvps[double_p], primitive_batchers[double_p] = jvp, batch
    x = jnp.arange(3.0)
    assert sw.vmap(sw.grad(lambda x: double_p.bind(x, 1)[0]))(x).tolist() == [2, 2, 2]
    zero, primal = Zero(sw.typeof(x)), UndefinedPrimal(sw.typeof(x))
    assert primal.aval is sw.typeof(x)
    for node in (zero, primal):
        leaves, structure = sw.tree.flatten(node)
        assert leaves == [] and structure.unflatten([]).aval is node.aval
    mapped = sw.vmap(lambda x, zero: x + zero.aval.size, in_axes=(0, None))(x, zero)
    assert mapped.tolist() == [3, 4, 5]


def test_a_primitive_with_a_lowering_alone_runs_compiled_and_is_traced_once():
    traced = []
    shift_p = Primitive("shift")

    def shift(x, *, by):
        traced.append(x.shape)
        return x + by

    lowerings[shift_p] = shift
    x = jnp.arange(3.0)
    for _ in range(3):
        results = shift_p.bind(x, by=1), shift_p.bind(x, by=2)
    assert [y.tolist() for y in results] == [[1, 2, 3], [2, 3, 4]]
    assert len(traced) == 2
    assert shift_p.bind(jnp.ones(2), by=1).tolist() == [2, 2] and len(traced) == 3
    for _ in range(2):
        assert sw.jit(lambda x: shift_p.bind(x, by=5) + shift_p.bind(2 * x, by=5))(x).tolist() == [10, 13, 16]
    assert len(traced) <= 5  # one for each place in the program
