"""Wrong arguments of lax functions: the typed error and its text."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import lax
from shardwise import numpy as jnp

X, V, N = np.ones((2, 3), np.float32), np.ones(3, np.float32), np.arange(3)
EYE = np.eye(3, dtype=np.float32)


def ragged(contract=((1,), (1,)), ragged_dims=(0,), groups=(0,), sizes=(1, 1), **keywords):
    numbers = lax.RaggedDotDimensionNumbers((contract, ((), ())), ragged_dims, groups)
    return lax.ragged_dot_general(X, np.ones((2, 3, 4), np.float32), np.asarray(sizes), numbers, **keywords)


CASES = [
    # generic_reduce
    (
        lambda: lax.reduce([V, V], 0.0, max, (0,)),
        ValueError,
        "reduce: init_values must have the structure of the operand",
    ),
    (
        lambda: lax.reduce([V, X], [0.0, 0.0], max, (0,)),
        TypeError,
        "reduce: operands must be one or more arrays of the",
    ),
    (lambda: lax.reduce(V, V, jnp.add, (0,)), TypeError, r"reduce: the init value of f32\[3\] must be a scalar of its"),
    (
        lambda: lax.reduce(V, np.float32(0), lambda x, y: x > y, (0,)),
        TypeError,
        r"reduce: computation must return f32\[\], the type of its arguments, not bool\[\]",
    ),
    # ragged
    (lambda: ragged(group_offset=0), NotImplementedError, "ragged_dot_general: group_offset is not supported"),
    (lambda: ragged(ragged_dims=(0, 1)), TypeError, r"ragged_dot_general: lhs_ragged_dimensions must be one dim of "),
    (lambda: ragged(groups=()), TypeError, "ragged_dot_general: rhs_group_dimensions must be one free dim of "),
    (lambda: ragged(ragged_dims=(1,)), TypeError, "ragged_dot_general: rhs_group_dimensions must be no dim of "),
    (lambda: ragged(sizes=(1.0, 1.0)), TypeError, "ragged_dot_general: group_sizes must be an integer array of rank 1"),
    (
        lambda: ragged(sizes=[[1, 1]]),
        TypeError,
        r"ragged_dot_general: group_sizes must have rank 1 or the dims \(\) bef",
    ),
    (lambda: ragged(sizes=(1, 1, 0)), TypeError, r"ragged_dot_general: rhs .* has 2 groups, but group_sizes .* has 3"),
    # shape
    (lambda: lax.broadcast(V, (-1,)), TypeError, r"broadcast: the sizes of a shape must not be negative: \(-1,\)"),
    (lambda: lax.broadcast_to_rank(X, 1), ValueError, r"broadcast_to_rank: f32\[2,3\] has more than 1 dims"),
    (lambda: lax.reshape(V, (2,)), TypeError, r"reshape: f32\[3\] has 3 elements, shape \(2,\) has 2"),
    # linalg
    (
        lambda: lax.linalg.qr(EYE, use_magma=True),
        NotImplementedError,
        "qr: only the LAPACK implementation is supported",
    ),
    (
        lambda: lax.linalg.symmetric_product(EYE.astype(int), EYE.astype(int)),
        TypeError,
        "symmetric_product: needs floats, not ",
    ),
    # creation
    (lambda: lax.full_like(V, V), TypeError, r"full_like: fill_value must be a scalar, not f32\[3\]"),
    # indexing
    (
        lambda: lax.dynamic_slice(X, (0, 0), (1, 1), allow_negative_indices=(True,)),
        ValueError,
        "dynamic_slice: allow_negative_indices must be one boolean, or one for each of 2 dims",
    ),
    # barriers
    (
        lambda: lax.dce_sink(V, prevent_mlir_dce=True),
        NotImplementedError,
        "dce_sink: prevent_mlir_dce=True is not supp",
    ),
    (lambda: lax.after_all(V), TypeError, r"after_all: operands must be tokens made by create_token, not f32\[3\]"),
    # precision and dot products
    (lambda: lax.dot(EYE, EYE, precision=("high",) * 3), ValueError, "dot: precision must be one precision or a pair"),
    # conv_shapes
    (lambda: lax.padtype_to_pads((3,), (1,), (1,), 3), TypeError, "padtype_to_pads: padding must be 'SAME', 'SAME_"),
    (
        lambda: lax.conv_shape_tuple((1, 1, 3), (1, 1, 1), (1,), ((0, 0), (0, 0))),
        TypeError,
        "conv_shape_tuple: pads must have one pair for each of 1 spatial dims",
    ),
    (
        lambda: lax.conv_shape_tuple((1, 1, 3), (1, 1, 1), (1,), ((-4, 0),)),
        ValueError,
        r"conv_shape_tuple: negative padding .* exceeds the sizes \(3,\) of the dims",
    ),
    # solve
    (
        lambda: lax.custom_linear_solve(lambda x: x, V, lambda _, b: b, has_aux=True),
        TypeError,
        "custom_linear_solve: with has_aux, solve must return a pair of the result and aux",
    ),
    (
        lambda: lax.custom_linear_solve(lambda x: (x, x), V, lambda _, b: b),
        TypeError,
        "custom_linear_solve: matvec must return the structure ",
    ),
    # control
    (
        lambda: sw.vmap(lambda x: x, out_axes=3)(V),
        ValueError,
        "vmap of .*: out_axes has axis 3 for result 0, but with the batch axis its rank is 1",
    ),
    (
        lambda: sw.vmap(lambda x: x, out_axes="a")(V),
        TypeError,
        "vmap of .*: out_axes must be an integer, None, or a pyt",
    ),
    (lambda: sw.pure_callback(3, V, V), TypeError, "a callback must be a function, not 3"),
    (
        lambda: sw.jvp(lambda n: n, (N,), (N,)),
        TypeError,
        "jvp of .*: the tangent of a value of type .* must have dtype float0",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), CASES, ids=[text.replace("\\", "")[:40] for _, _, text in CASES])
def test_wrong_arguments_raise(call, error, text):
    with pytest.raises(error, match=f"^{text}"):
        call()


def test_a_scan_of_length_zero_in_python_raises():
    with (
        sw.disable_jit(),
        pytest.raises(ValueError, match=r"^scan: with disable_jit, the length must not be 0: the results of "),
    ):
        lax.scan(lambda c, x: (c, x), 0.0, np.ones(0))
