"""jax.api_util and jax.extend: functions of flat lists of leaves, and types with mapped dims."""

import numpy as np
import pytest

import shardwise as sw
from shardwise.compiler.ir.types import parse_type
from shardwise.extend import core
from shardwise.extend.linear_util import transformation_with_aux, wrap_init
from shardwise.jax_modules import api_util
from shardwise.jax_modules._src import dtypes, traceback_util


def combine(x, pair, scale=1):
    return {"sum": (x + pair[0]) * scale, "second": pair[1]}


def test_flatten_fun():
    leaves, structure = sw.tree.flatten(((1, (2, 3)), {"scale": 10}))
    function, out_tree = api_util.flatten_fun(wrap_init(combine), structure)
    assert function.call_wrapped(*leaves) == [3, 30]
    assert out_tree().unflatten([3, 30]) == {"second": 3, "sum": 30}


def test_flatten_fun_nokwargs_with_bound_parameters():
    leaves, structure = sw.tree.flatten((1, (2, 3)))
    function, out_tree = api_util.flatten_fun_nokwargs(wrap_init(combine, {"scale": 5}), structure)
    assert function.call_wrapped(*leaves) == [3, 15]
    assert out_tree().num_leaves == 2


def test_argnums_partial_binds_the_other_arguments():
    function, dynamic = api_util.argnums_partial(wrap_init(combine), (-1, 0), (1, (2, 3), 10))
    assert dynamic == (10, 1)
    assert function.call_wrapped(5, 4) == {"sum": 30, "second": 3}
    with pytest.raises(ValueError, match=r"argument 1 of combine is static and must have a hash, but is \[2, 3\]"):
        api_util.argnums_partial(wrap_init(combine), 0, (1, [2, 3]))
    assert api_util.argnums_partial(wrap_init(combine), 0, (1, [2, 3]), require_static_args_hashable=False)[1] == (1,)


def test_safe_map_checks_lengths():
    assert api_util.safe_map(max, [1, 5], [3, 4]) == [3, 5]
    with pytest.raises(ValueError, match="longer"):
        api_util.safe_map(max, [1], [3, 4])


def test_types_with_and_without_a_mapped_dim():
    type = parse_type("f32[2,3]")
    assert core.mapped_aval(2, 0, type) == parse_type("f32[3]")
    assert core.unmapped_aval(4, 1, type) == parse_type("f32[2,4,3]")
    assert core.mapped_aval(2, None, type) == core.unmapped_aval(2, None, type) == type


def test_a_transformation_stores_a_second_value():
    @transformation_with_aux
    def scale(factor, x):
        y = yield (x * factor,), {"shift": 1}
        yield y * factor, f"{x} by {factor}"

    function, aux = scale(wrap_init(lambda x, shift: x + shift), 10)
    assert function.call_wrapped(3) == 310
    assert aux() == "3 by 10"


def test_only_concrete_values_are_forced():
    assert core.concrete_or_error(int, np.float32(2.5)) == 2
    assert core.concrete_or_error(None, "cpu") == "cpu"
    assert sw.grad(lambda x: x * core.concrete_or_error(float, x))(3.0) == 3
    with pytest.raises(sw.errors.ConcretizationTypeError, match=r"the size must be known, but the value of this i32"):
        sw.jit(lambda n: core.concrete_or_error(int, n, "the size must be known"))(3)


def test_dtypes_and_tracebacks():
    assert dtypes.supports_inf(np.float32)
    assert dtypes.to_complex_dtype(np.float64) == np.complex128
    assert traceback_util.api_boundary(len) is len
