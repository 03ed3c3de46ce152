"""jax.api_util and jax.extend: functions of flat lists of leaves, and types with mapped dims."""

import numpy as np
import pytest

import shardwise as sw
from shardwise.compiler.ir.types import parse_type
from shardwise.extend import core
from shardwise.extend.linear_util import wrap_init
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


def test_safe_map_checks_lengths():
    assert api_util.safe_map(max, [1, 5], [3, 4]) == [3, 5]
    with pytest.raises(ValueError, match="longer"):
        api_util.safe_map(max, [1], [3, 4])


def test_types_with_and_without_a_mapped_dim():
    type = parse_type("f32[2,3]")
    assert core.mapped_aval(2, 0, type) == parse_type("f32[3]")
    assert core.unmapped_aval(4, 1, type) == parse_type("f32[2,4,3]")
    assert core.mapped_aval(2, None, type) == core.unmapped_aval(2, None, type) == type


def test_dtypes_and_tracebacks():
    assert dtypes.supports_inf(np.float32)
    assert dtypes.to_complex_dtype(np.float64) == np.complex128
    assert traceback_util.api_boundary(len) is len
