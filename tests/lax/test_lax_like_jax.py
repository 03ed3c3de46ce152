"""Shape functions, dot products, selection and solvers of lax against JAX."""

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw
from shardwise import lax
from tests.agreement import (
    Case,
    batch_name,
    batches,
    eagerly_like,
    gradients_like,
    mesh_like_one_device,
    values_like,
    vmap_like_loop,
)

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

RNG = np.random.default_rng(0)


def floats(*shape, dtype=np.float32):
    return RNG.normal(size=shape).astype(dtype)


def integers(*shape, dtype=np.int32, low=-9, high=9):
    return RNG.integers(low, high, shape).astype(dtype)


X = floats(5, 6)
COUNTS = np.array([[2, 1, 0], [0, 3, 1]], np.int32)
BF16 = ml_dtypes.bfloat16
ENDS = np.array([0, 1, -1, 5, 2**31 - 1, -(2**31), -(2**31) + 1], np.int32)
PAIRS = tuple(np.ascontiguousarray(x) for x in np.meshgrid(ENDS, ENDS))

SHAPES = [
    Case("broadcast", (X, (2,))),
    Case("broadcast", (X, ())),
    Case("broadcast", (2.5, (3,))),
    Case("broadcast_in_dim", (X, (5, 3, 6), (0, 2))),
    Case("broadcast_in_dim", (floats(5, 1), (5, 3), (0, 1))),
    Case("broadcast_in_dim", (floats(1), (4, 3), (0,))),
    Case("broadcast_in_dim", (np.float32(3), (2, 2), ())),
    Case("broadcast_like", (floats(6), X)),
    Case("broadcast_like", (floats(5, 1), X)),
    Case("broadcast_to_rank", (X, 4)),
    Case("reshape", (X, (3, 10))),
    Case("reshape", (X, (10, 3), (1, 0))),
    Case("reshape", (floats(0, 3), (3, 0, 2))),
    Case("reshape", (floats(), (1, 1))),
    Case("transpose", (X, (1, 0))),
    Case("transpose", (floats(2, 3, 4), (2, 0, 1))),
    Case("expand_dims", (X, (0, -1))),
    Case("expand_dims", (X, ())),
    Case("squeeze", (floats(1, 5, 1), (0, -1))),
    Case("squeeze", (floats(1, 5, 1), ())),
    Case("collapse", (floats(2, 3, 4), 1)),
    Case("collapse", (floats(2, 3, 4), 0, -1)),
    Case("collapse", (floats(2, 3, 4), 1, 1)),
    Case("tile", (X, (2, 3))),
    Case("tile", (floats(5, 1), (1, 4))),
    Case("tile", (floats(3), (0,))),
    Case("split", (X, (2, 0, 3))),
    Case("split", (X, (1, 5), -1)),
    Case("stack", ([X, X + 1], -1)),
    Case("stack", ([X],)),
    Case("unstack", (X, 1)),
    Case("index_in_dim", (X, -1)),
    Case("index_in_dim", (X, 2, 1, False)),
    Case("full", ((2, 3), 4)),
    Case("full", ((2, 3), 4, np.int8)),
    Case("full", ((), np.float32(2.5))),
    Case("full", ((2,), floats())),
    Case("full_like", (X, 3)),
    Case("full_like", (X, 3, np.int32, (2, 2))),
    Case("iota", (np.float32, 5)),
    Case("iota", (np.int32, 0)),
    Case("broadcasted_iota", (np.uint8, (3, 4), 1)),
    Case("empty", ((2, 3), np.float32)),
]
NEGATIVE_STARTS = np.array(-2, np.int32), np.array(-3, np.int32)
SELECTIONS = [
    Case("select_n", (integers(5, 6, low=0, high=2).astype(bool), X, -X)),
    Case("select_n", (integers(5, 6, low=0, high=4), X, -X, X * X, X + 1)),
    # JAX's gradient is zero where the index is out of bounds.
    Case("select_n", (integers(5, 6, low=-2, high=6), X, -X, X * X, X + 1), smooth=False),
    Case("select_n", (np.int32(2), X, -X, X * X)),
    Case("select_n", (integers(5, 6, dtype=np.uint8, low=0, high=3), X, -X, X * X)),
    Case("mul", (integers(3, dtype=np.int8, low=90, high=127), integers(3, dtype=np.int16)), {"out_dtype": np.float32}),
    Case("dynamic_slice", (X, NEGATIVE_STARTS, (2, 3))),
    Case("dynamic_slice", (X, NEGATIVE_STARTS, (2, 3)), {"allow_negative_indices": False}),
    Case("dynamic_slice", (X, NEGATIVE_STARTS, (2, 3)), {"allow_negative_indices": (True, False)}),
    Case("dynamic_update_slice", (X, X[:2, :2], NEGATIVE_STARTS), {"allow_negative_indices": False}),
    Case("dynamic_index_in_dim", (X, NEGATIVE_STARTS[0], 1, False), {"allow_negative_indices": False}),
    Case("select_n", (np.bool_(True), X, -X)),
    Case("select_n", (integers(5, 6), X), smooth=False),
    Case("optimization_barrier", ((X, X + 1),)),
    Case("exp2", (X,)),
    Case("exp2", (np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 128.0], np.float32),)),
    Case("mulhi", PAIRS),
    Case("mulhi", tuple(x.astype(np.uint32) for x in PAIRS)),
    Case("mulhi", tuple(x.astype(np.int8) for x in PAIRS)),
    Case("mulhi", tuple(x.astype(np.uint8) for x in PAIRS)),
]
A, B = floats(3, 4), floats(4, 5)
PRODUCTS = [
    Case("dot", (A, B)),
    Case("dot", (A, floats(4))),
    Case("dot", (floats(4), floats(4))),
    Case("dot", (A.astype(BF16), B)),
    Case("dot", (A.astype(np.float16), B.astype(BF16))),
    Case("dot", (A, B), {"precision": "highest"}),
    Case("dot", (A, B), {"precision": ("high", "default")}),
    Case("dot", (A.astype(BF16), B.astype(BF16)), {"preferred_element_type": np.float32}),
    Case("dot", (A, B), {"preferred_element_type": BF16}, rtol=5e-2, atol=1e-2),
    Case("dot", (integers(3, 4, dtype=np.int8, low=-128, high=127), integers(4, 5, dtype=np.int8, high=127))),
    Case(
        "dot",
        (integers(3, 4, dtype=np.int8, low=-128, high=127), integers(4, 5, dtype=np.int8, high=127)),
        {"preferred_element_type": np.int32},
    ),
    Case("dot", (integers(3, 4), B)),
    Case("dot_general", (floats(2, 3, 4), floats(4, 2, 5), (((2,), (0,)), ((0,), (1,))))),
    Case("dot_general", (floats(2, 3, 4), floats(4, 3, 5), (((1, 2), (1, 0)), ((), ())))),
    Case("dot_general", (floats(2, 3), floats(2, 3), (((), ()), ((), ())))),
    Case("dot_general", (floats(2, 0), floats(0, 3), (((1,), (0,)), ((), ())))),
    Case("batch_matmul", (floats(2, 3, 4), floats(2, 4, 5))),
    Case("ragged_dot", (floats(7, 4), floats(3, 4, 5), np.array([2, 0, 4], np.int32))),
    Case(
        "ragged_dot",
        (floats(7, 4).astype(BF16), floats(2, 4, 5).astype(BF16), np.array([3, 4], np.int32), None, np.float32),
    ),
    Case(
        "ragged_dot_general_of_numbers",
        (floats(7, 4), floats(7, 5), np.array([2, 5], np.int32), ((((0,), (0,)), ((), ())), (0,), ())),
        smooth=False,  # JAX has no derivative
    ),
    Case(
        "ragged_dot_general_of_numbers",
        (floats(2, 7, 4), floats(3, 2, 4, 5), COUNTS, ((((2,), (2,)), ((0,), (1,))), (1,), (0,))),
    ),
    Case(
        "ragged_dot_general_of_numbers",
        (floats(2, 7, 4), floats(3, 2, 4, 5), COUNTS[0], ((((2,), (2,)), ((0,), (1,))), (1,), (0,))),
    ),
    Case(
        "ragged_dot_general_of_numbers",
        (floats(4, 3, 2), floats(3, 5, 2), np.array([1, 1], np.int32), ((((1,), (0,)), ((2,), (2,))), (2,), ())),
        smooth=False,  # JAX has no derivative
    ),
    Case("scaled_dot", (floats(2, 8).astype(BF16), floats(8, 3).astype(BF16)), smooth=False),  # JAX has no derivative
    Case(
        "scaled_dot",
        (floats(2, 8).astype(BF16), floats(8, 3).astype(BF16)),
        {
            "lhs_scale": floats(2, 4).astype(BF16),
            "rhs_scale": floats(2, 3).astype(BF16),
            "preferred_element_type": np.float32,
        },
        smooth=False,
        rtol=2e-2,  # XLA may omit intermediate roundings to bf16
        atol=2e-2,
    ),
    Case("conv_general_dilated_local", (floats(2, 3, 6), floats(4, 9, 4), (1,), "VALID", (3,)), rtol=1e-4),
    Case(
        "conv_general_dilated_local",
        (floats(2, 6, 5, 3), floats(4, 4, 18, 2), (1, 1), "VALID", (2, 3), None, None, ("NHWC", "WHIO", "NHWC")),
        rtol=1e-4,
    ),
]
SOLVERS = [
    Case("linear_solve", (floats(3, 3) + 4 * np.eye(3, dtype=np.float32), floats(3)), rtol=1e-4),
    Case("symmetric_solve", (np.diag(np.arange(1.0, 4)).astype(np.float32), floats(3)), rtol=1e-4),
    Case("root", (np.array([2.0, 9.0], np.float32),), rtol=1e-4),
    Case("scatter_apply_affine", (integers(5), np.array([[0], [3], [3], [9]], np.int32))),
    Case("scatter_apply_affine", (floats(5), np.array([[4], [-1], [4], [4]], np.int32)), smooth=False),
    Case("reduce_by_functions", (X,)),
    Case("reduce_by_functions", (integers(0, 3),)),
]


def extend_namespace(package, lax):
    """Add functions to the namespace `lax` that call it with the package's own types and functions."""

    def ragged_dot_general_of_numbers(lhs, rhs, sizes, numbers):
        return lax.ragged_dot_general(lhs, rhs, sizes, lax.RaggedDotDimensionNumbers(*numbers))

    def solver(a):
        return lambda matvec, b: package.numpy.stack([(inverse3(a)[i] * b).sum() for i in range(3)])

    def inverse3(a):
        rows = [
            [
                a[(i + 1) % 3, (j + 1) % 3] * a[(i + 2) % 3, (j + 2) % 3]
                - a[(i + 1) % 3, (j + 2) % 3] * a[(i + 2) % 3, (j + 1) % 3]
                for i in range(3)
            ]
            for j in range(3)
        ]
        determinant = sum(a[0, i] * rows[i][0] for i in range(3))
        return [package.numpy.stack(row) / determinant for row in rows]

    def linear_solve(a, b):
        stop = lax.stop_gradient(a)
        return lax.custom_linear_solve(lambda x: lax.dot(a, x), b, solver(stop), solver(stop.T))

    def symmetric_solve(a, b):
        def solve_with_aux(matvec, b):
            return {"x": solver(lax.stop_gradient(a))(matvec, b["x"])}, 3

        return lax.custom_linear_solve(
            lambda x: {"x": lax.dot(a, x["x"])}, {"x": b}, solve_with_aux, symmetric=True, has_aux=True
        )[0]["x"]

    def root(a):
        def newton(f, x):
            return lax.fori_loop(
                0, 12, lambda _, x: x - f(x) / package.jvp(f, (x,), (package.numpy.ones_like(x),))[1], x
            )

        return lax.custom_root(
            lambda x: x**3 - a, package.numpy.ones_like(a), newton, lambda g, y: y / g(package.numpy.ones_like(y))
        )

    def scatter_apply_affine(x, indices):
        numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
        return lax.scatter_apply(x, indices, lambda x: x * 2 + 1, numbers, update_shape=indices.shape[:1])

    def reduce_by_functions(x):
        return [
            lax.reduce(x, package.numpy.zeros((), x.dtype), lax.add, (0,)),
            lax.reduce(x, package.numpy.full((), 2, x.dtype), lambda a, b: b * a, (1, 0)),
            lax.reduce(x, package.numpy.zeros((), x.dtype), lambda a, b: a + b * 1, (0,)),
            lax.reduce(
                (x, x + 1),
                (package.numpy.zeros((), x.dtype),) * 2,
                lambda a, b: (a[0] + b[0], lax.max(a[1], b[1])),
                (1,),
            ),
        ]

    names = {name: getattr(lax, name) for name in dir(lax) if not name.startswith("_")}
    return SimpleNamespace(
        **names,
        ragged_dot_general_of_numbers=ragged_dot_general_of_numbers,
        linear_solve=linear_solve,
        symmetric_solve=symmetric_solve,
        root=root,
        scatter_apply_affine=scatter_apply_affine,
        reduce_by_functions=reduce_by_functions,
    )


OURS, THEIRS = extend_namespace(sw, lax), extend_namespace(jax, jax.lax)
CASES = [*SHAPES, *SELECTIONS, *PRODUCTS, *SOLVERS]


@pytest.mark.table(default=1)
@pytest.mark.parametrize("cases", batches(CASES), ids=batch_name)
def test_values_match_jax(cases):
    values_like(OURS, THEIRS, cases, jax)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("cases", batches(CASES), ids=batch_name)
def test_gradients_match_jax(cases):
    gradients_like(OURS, THEIRS, cases, jax)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("cases", batches(CASES), ids=batch_name)
def test_vmap_matches_loop(cases):
    vmap_like_loop(OURS, [case for case in cases if case.name not in ("broadcast_in_dim",)])


@pytest.mark.table(default=1)
@pytest.mark.parametrize("which", ["first", "last"])
@pytest.mark.parametrize("cases", batches(CASES), ids=batch_name)
def test_mesh_matches_one_device(mesh, cases, which):
    mesh_like_one_device(mesh, OURS, cases, which)


@pytest.mark.slow
def test_eager_values_match_jax():
    eagerly_like(OURS, THEIRS, [*SHAPES[:8], *SELECTIONS[:4], *PRODUCTS[:4], *SOLVERS])


def test_pbroadcast():
    result = sw.vmap(lambda row: lax.pbroadcast({"x": row}, "i", 3), axis_name="i")(X)
    np.testing.assert_array_equal(result["x"], np.broadcast_to(X[3], X.shape))
    with pytest.raises(ValueError, match="source must be one of the members 0 to 4 of 'i', not 5"):
        sw.vmap(lambda row: lax.pbroadcast(row, "i", 5), axis_name="i")(X)


def test_shape_inference_matches_jax():
    numbers = ("NHWC", "HWIO", "NHWC")
    calls = [
        ("broadcast_shapes", ((3, 1), (1, 4), (5, 1, 1))),
        ("shape_as_value", ((2, 3),)),
        ("padtype_to_pads", ((5, 6), (3, 2), (2, 1), "SAME")),
        ("padtype_to_pads", ((5, 6), (3, 2), (2, 1), "same_lower")),
        ("padtype_to_pads", ((5, 6), (3, 2), (2, 1), "VALID")),
        ("conv_general_permutations", (("NHWC", "WHIO", "CNHW"),)),
        ("conv_shape_tuple", ((2, 3, 8, 9), (4, 3, 3, 2), (2, 1), "SAME")),
        ("conv_shape_tuple", ((4, 3, 8, 9), (4, 3, 3, 2), (2, 1), ((1, 0), (0, -2)), 2)),
        ("conv_general_shape_tuple", ((2, 8, 9, 3), (3, 2, 3, 4), (2, 1), "VALID", numbers)),
        ("conv_transpose_shape_tuple", ((2, 8, 9, 3), (3, 2, 3, 4), (2, 1), "VALID", numbers)),
        ("conv_transpose_shape_tuple", ((2, 8, 9, 3), (3, 2, 3, 4), (2, 1), ((0, 1), (2, 2)), numbers)),
        ("reduce_window_shape_tuple", ((8, 9), (2, 3), (2, 1), ((0, 0), (1, 1)), (2, 1), (1, 2))),
        ("reduce_window_shape_tuple", ((2, 1), (3, 3), (1, 1), ((0, 0), (0, 0)))),
    ]
    for name, args in calls:
        ours, theirs = getattr(lax, name)(*args), getattr(jax.lax, name)(*args)
        np.testing.assert_array_equal(ours, theirs, err_msg=name)


INVALID_CALLS = [
    ("dot", (A, A), {}),
    ("dot", (A.astype(np.float16), B.astype(BF16)[:3]), {}),
    ("dot", (integers(3, 4), integers(4, 5)), {"preferred_element_type": np.int8}),
    ("dot_general", (A, B, (((2,), (0,)), ((), ()))), {}),
    ("dot_general", (A, B, (((1,), (1,)), ((), ()))), {}),
    ("batch_matmul", (A, floats(2, 4, 5)), {}),
    ("broadcast_in_dim", (X, (5, 6), (1, 0)), {}),
    ("broadcast_in_dim", (X, (5, 6), (0,)), {}),
    ("broadcast_in_dim", (X, (5, 7), (0, 1)), {}),
    ("broadcast_shapes", ((3,), (4,)), {}),
    ("reshape", (X, (6, 5), (0, 0)), {}),
    ("transpose", (X, (0,)), {}),
    ("squeeze", (X, (0,)), {}),
    ("split", (X, (1, 2)), {}),
    ("collapse", (X, 2, 1), {}),
    ("full", ((2,), floats(2)), {}),
    ("broadcasted_iota", (np.int32, (2, 3), 2), {}),
    ("iota", (np.bool_, 3), {}),
    ("select_n", (integers(5, 6).astype(bool), X, X, X), {}),
    ("select_n", (X, X, X), {}),
    ("select_n", (np.int32(0), X, X.astype(np.int32)), {}),
    ("select_n", (integers(6), X, X), {}),
    ("select_n", (np.int32(0),), {}),
    ("mulhi", (integers(3), integers(3, dtype=np.int8)), {}),
    ("mulhi", (floats(3), floats(3)), {}),
    ("exp2", (integers(3),), {}),
    ("add", (floats(3), integers(3)), {}),
    ("index_in_dim", (X, 5), {}),
    ("dynamic_slice", (X, (-1, 0), (1, 1)), {"allow_negative_indices": False}),
    ("padtype_to_pads", ((5,), (3,), (1,), "FULL"), {}),
    ("conv_general_permutations", (("NHWC", "HWIO", "NHWW"),), {}),
]


@pytest.mark.parametrize(
    ("name", "args", "keywords"), INVALID_CALLS, ids=[f"{row[0]}-{n}" for n, row in enumerate(INVALID_CALLS)]
)
def test_invalid_calls_raise_the_same_exception_type_as_jax(name, args, keywords):
    with pytest.raises(Exception) as theirs:
        getattr(jax.lax, name)(*args, **keywords)
    with pytest.raises(type(theirs.value)):
        getattr(lax, name)(*args, **keywords)


def test_dot_algorithms_equivalent_to_a_precision_are_supported():
    for name in ("F32_F32_F32", lax.DotAlgorithmPreset.DEFAULT):
        np.testing.assert_allclose(lax.dot(A, B, precision=name), A @ B, rtol=1e-5)
    with pytest.raises(NotImplementedError, match="TF32_TF32_F32 is not supported"):
        lax.dot(A, B, precision=lax.DotAlgorithmPreset.TF32_TF32_F32)
    with pytest.raises(NotImplementedError, match="accuracy"):
        lax.exp(X, accuracy=lax.Tolerance(1e-3))
