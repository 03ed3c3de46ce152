"""Calls of the functions of `shardwise.lax` and `lax.linalg` on arrays of `n` rows and columns."""

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.lax import linalg
from tests.layouts.call import (
    Call,
    above_one,
    call,
    complex_numbers,
    floats,
    functions_with,
    integers,
    positive_definite,
    probabilities,
    well_conditioned,
)

COMPLEX_UNARY = ("conj", "imag", "real")
INTEGER_UNARY = ("bitwise_not", "clz", "population_count")
UNARY = (
    *sorted({*functions_with(lax, "shardwise.lax.elementwise", 1)} - {*COMPLEX_UNARY, *INTEGER_UNARY}),
    *("bessel_i0e", "bessel_i1e", "stop_gradient", "optimization_barrier", "stage"),
)
BINARY = (
    *("add", "atan2", "complex", "div", "eq", "ge", "gt", "le", "lt", "max", "min", "mul", "ne", "nextafter", "pow"),
    *("rem", "sub"),
)
INTEGER_BINARY = (
    *("bitwise_and", "bitwise_or", "bitwise_xor", "mulhi", "shift_left", "shift_right_arithmetic"),
    "shift_right_logical",
)


def elementwise(n: int) -> Iterator[Call]:
    x, y, i, j = floats(n, n), floats(n, n, seed=1), integers(n, n), integers(n, n, low=0, high=7, seed=8)
    for name in UNARY:
        function = getattr(lax, name)
        yield call(
            f"lax.{name}", lambda x, y, f=function: [f(x), f(y)], probabilities(n, n), above_one(n, n), exact=True
        )
    for name in BINARY:
        yield call(f"lax.{name}", getattr(lax, name), above_one(n, n) if name == "pow" else x, y, exact=True)
    for name in COMPLEX_UNARY:
        yield call(f"lax.{name}", getattr(lax, name), complex_numbers(n, n), exact=True)
    for name in INTEGER_UNARY:
        yield call(f"lax.{name}", getattr(lax, name), i)
    for name in INTEGER_BINARY:
        yield call(f"lax.{name}", getattr(lax, name), i, j)
    for name in ("igamma", "igammac", "igamma_grad_a", "random_gamma_grad"):
        yield call(f"lax.{name}", getattr(lax, name), above_one(n, n), above_one(n, n, seed=9))
    yield call("lax.zeta", lax.zeta, above_one(n, n) + 1, above_one(n, n, seed=9))
    yield call("lax.betainc", lax.betainc, above_one(n, n), above_one(n, n, seed=9), probabilities(n, n))
    yield call("lax.polygamma", lax.polygamma, above_one(n, n).round(), above_one(n, n, seed=9))
    yield call("lax.clamp", lambda x: lax.clamp(-0.5, x, 0.5), x, exact=True)
    yield call("lax.integer_pow", lambda x: lax.integer_pow(x, 3), x)
    yield call("lax.polynomial", lambda x, y: lax.polynomial(x, [1.0, 2.0, y, -3.0]), x, y)
    yield call("lax.reduce_precision", lambda x: lax.reduce_precision(x, 5, 3), x, exact=True)
    yield call("lax.convert_element_type", lambda x: lax.convert_element_type(x, np.int16), 9 * x)
    yield call(
        "lax.bitcast_convert_type",
        lambda x, b: [
            *(lax.bitcast_convert_type(x, dtype) for dtype in (np.int32, np.uint8)),
            lax.bitcast_convert_type(b.reshape(n, -1, 2), np.uint16),
        ],
        x,
        integers(n, n, low=0, dtype=np.uint8),
        exact=True,
    )
    yield call("lax.select", lax.select, x > 0, x, y, exact=True)
    yield call("lax.select_n", lax.select_n, j % 3, x, y, x + y, exact=True)
    yield call("lax.dtype", lambda x: np.zeros(1, lax.dtype(x)), x, compiled=False)


def shape_functions(n: int) -> Iterator[Call]:
    x, y = floats(n, n), floats(n, n, seed=1)
    moves: dict[str, Any] = {
        "broadcast": lambda x: lax.broadcast(x, (2, 3)),
        "broadcast_in_dim": lambda x: lax.broadcast_in_dim(x, (n, 3, n), (0, 2)),
        "broadcast_to_rank": lambda x: lax.broadcast_to_rank(x, 4),
        "collapse": lambda x: lax.collapse(x, 0),
        "expand_dims": lambda x: lax.expand_dims(x, (0, 2)),
        "full_like": lambda x: lax.full_like(x, 2) * x,
        "index_in_dim": lambda x: [lax.index_in_dim(x, 5, axis) for axis in (0, 1)],
        "pad": lambda x: [lax.pad(x, 1.5, [(2, -1, 1), (-3, 2, 0)]), lax.pad(x, 1.5, [(0, 3, 0), (1, 1, 2)])],
        "reshape": lambda x: [
            lax.reshape(x, (n * n,)),
            lax.reshape(x, (2, n, n // 2)),
            lax.reshape(x, (n * n,), (1, 0)),
        ],
        "rev": lambda x: [lax.rev(x, (0,)), lax.rev(x, (0, 1))],
        "slice": lambda x: lax.slice(x, (1, 2), (n, n - 1), (2, 3)),
        "slice_in_dim": lambda x: [lax.slice_in_dim(x, 1, -2, 2, axis) for axis in (0, 1)],
        "split": lambda x: [lax.split(x, (3, n - 3), axis) for axis in (0, 1)],
        "squeeze": lambda x: lax.squeeze(x[:, None], (1,)),
        "tile": lambda x: lax.tile(x, (3, 2)),
        "transpose": lambda x: lax.transpose(x, (1, 0)),
        "unstack": lambda x: [lax.unstack(x), lax.unstack(x, 1)],
    }
    for name, function in moves.items():
        yield call(f"lax.{name}", function, x, exact=True)
    yield call("lax.concatenate", lambda x, y: [lax.concatenate([x, y], d) for d in (0, 1)], x, y, exact=True)
    yield call("lax.stack", lambda x, y: [lax.stack([x, y], axis) for axis in (0, -1)], x, y, exact=True)
    yield call("lax.broadcast_like", lax.broadcast_like, x[0], x, exact=True)


def indexing(n: int) -> Iterator[Call]:
    x, at = floats(n, n), np.array(n - 3, np.int32)
    rows = integers(n, 1, low=-2, high=n + 2)
    numbers = lax.GatherDimensionNumbers((1,), (0,), (0,))
    yield call(
        "lax.gather",
        lambda x, i: [lax.gather(x, i, numbers, (1, n), mode=mode, fill_value=7) for mode in ("fill", "clip")],
        x,
        rows,
        exact=True,
    )
    updates = lax.ScatterDimensionNumbers((1,), (0,), (0,))
    for name in ("scatter", "scatter_add", "scatter_max", "scatter_min", "scatter_mul", "scatter_sub"):
        # The result of several updates of one row is unspecified; here no row is updated twice.
        arguments = np.arange(1, n + 1, dtype=np.int32)[:, None] if name == "scatter" else rows
        function = getattr(lax, name)
        yield call(
            f"lax.{name}",
            lambda x, i, y, f=function: [f(x, i, y, updates, mode=mode) for mode in ("drop", "clip")],
            x,
            arguments if name != "scatter" else np.roll(arguments, 3, 0) - 1,
            floats(n, n, seed=1),
        )
    yield call(
        "lax.scatter_apply",
        lambda x, i: lax.scatter_apply(
            x, i, lambda x: x * 2 + 1, lax.ScatterDimensionNumbers((1,), (0,), (0,)), update_shape=(n, n)
        ),
        x,
        rows,
    )
    yield call("lax.index_take", lambda x, i: [lax.index_take(x, (i,), (d,)) for d in (0, 1)], x, abs(rows[:, 0]) % n)
    moving = {
        "dynamic_index_in_dim": lambda x, i: [lax.dynamic_index_in_dim(x, i, axis) for axis in (0, 1)],
        "dynamic_slice": lambda x, i: lax.dynamic_slice(x, (i, i - 4), (4, 3)),
        "dynamic_slice_in_dim": lambda x, i: [lax.dynamic_slice_in_dim(x, i, 5, axis) for axis in (0, 1)],
        "dynamic_update_index_in_dim": lambda x, i: [
            lax.dynamic_update_index_in_dim(x, -x[0], i, axis) for axis in (0, 1)
        ],
        "dynamic_update_slice": lambda x, i: lax.dynamic_update_slice(x, -x[:4, :3], (i, i - 4)),
        "dynamic_update_slice_in_dim": lambda x, i: [
            lax.dynamic_update_slice_in_dim(x, -x[:3], i, 0),
            lax.dynamic_update_slice_in_dim(x, -x[:, :3], i, 1),
        ],
    }
    for name, function in moving.items():
        yield call(f"lax.{name}", function, x, at, exact=True)


def along_axes(n: int) -> Iterator[Call]:
    x, i = floats(n, n), integers(n, n)
    for name in ("cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum"):
        function = getattr(lax, name)
        yield call(f"lax.{name}", lambda x, f=function: [f(x), f(x, 1), f(x, 0, True), f(x, 1, True)], above_one(n, n))
    for name in ("reduce_max", "reduce_min", "reduce_prod", "reduce_sum"):
        function = getattr(lax, name)
        yield call(f"lax.{name}", lambda x, f=function: [f(x, dims) for dims in ((0,), (1,), (0, 1))], x)
    for name in ("reduce_and", "reduce_or", "reduce_xor"):
        function = getattr(lax, name)
        yield call(f"lax.{name}", lambda x, f=function: [f(x, dims) for dims in ((0,), (1,), (0, 1))], i)
    for name in ("argmax", "argmin"):
        function = getattr(lax, name)
        yield call(f"lax.{name}", lambda x, f=function: [f(x, dim, np.int32) for dim in (0, 1)], i)
    for name in ("approx_max_k", "approx_min_k"):
        function = getattr(lax, name)
        yield call(f"lax.{name}", lambda x, f=function: [f(x, 3), f(x, 3, 0)], x, exact=True)
    yield call("lax.top_k", lambda x: [lax.top_k(x, 3, axis=axis) for axis in (0, 1)], x, exact=True)
    yield call("lax.sort", lambda x, y: [lax.sort(x, 0), lax.sort((x, y), 1, num_keys=2)], i, x, exact=True)
    yield call("lax.sort_key_val", lambda x, y: [lax.sort_key_val(x, y, d) for d in (0, 1)], i, x, exact=True)
    yield call(
        "lax.reduce",
        lambda x: [
            lax.reduce(x, np.float32(0), lambda a, b: a + b, (0,)),
            lax.reduce((x, -x), (np.float32(-9), np.float32(9)), lambda a, b: (lax.max(a[0], b[0]), lax.min(*b)), (1,))[
                0
            ],
        ],
        x,
    )
    yield call(
        "lax.reduce_window",
        lambda x: [
            lax.reduce_window(x, np.float32(0), lax.add, (3, 2), (1, 2), "SAME"),
            lax.reduce_window(x, -np.float32(np.inf), lax.max, (2, 3), (2, 1), "VALID"),
        ],
        x,
    )
    yield call(
        "lax.associative_scan",
        lambda x: [lax.associative_scan(lax.mul, x, axis=axis) for axis in (0, 1)],
        probabilities(n, n),
    )
    kinds = lax.FftType
    yield call(
        "lax.fft", lambda z: [lax.fft(z, kinds.FFT, (n,)), lax.fft(z, kinds.IFFT, (n, n))], complex_numbers(n, n)
    )


def products(n: int) -> Iterator[Call]:
    x, y = floats(n, n), floats(n, n, seed=1)
    loose = {"rtol": 1e-4, "atol": 1e-5}
    narrow = ml_dtypes.bfloat16
    yield call("lax.dot", lax.dot, x, y, **loose)
    yield call(
        "lax.dot_general",
        lambda x, y: [
            lax.dot_general(x, y, numbers) for numbers in ((((0,), (1,)), ((), ())), (((1,), (1,)), ((0,), (0,))))
        ],
        x,
        y,
        **loose,
    )
    yield call("lax.batch_matmul", lax.batch_matmul, floats(n, 3, n), floats(n, n, 2), **loose)
    groups = np.array([2, 0, n - 3], np.int32)
    yield call("lax.ragged_dot", lax.ragged_dot, x, floats(3, n, n), groups, **loose)
    numbers = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
    yield call(
        "lax.ragged_dot_general", lambda x, y, g: lax.ragged_dot_general(x, y, g, numbers), x, y, groups, **loose
    )
    yield call("lax.scaled_dot", lax.scaled_dot, x.astype(narrow), y.astype(narrow), rtol=2e-2, atol=2e-2)
    image, kernel = floats(n, 2, 6, n), floats(4, 2, 3, 3)
    yield call("lax.conv", lambda x, k: lax.conv(x, k, (1, 2), "SAME"), image, kernel, **loose)
    yield call(
        "lax.conv_general_dilated",
        lambda x, k: [
            lax.conv_general_dilated(x, k, (2, 1), "VALID", rhs_dilation=(1, 2)),
            lax.conv_general_dilated(x, k, (1, 1), [(1, 0), (2, 3)], lhs_dilation=(1, 2)),
        ],
        image,
        kernel,
        **loose,
    )
    yield call(
        "lax.conv_with_general_padding",
        lambda x, k: lax.conv_with_general_padding(x, k, (1, 1), [(0, 1), (2, -1)], None, None),
        image,
        kernel,
        **loose,
    )
    order = ("NCHW", "OIHW", "NCHW")
    yield call(
        "lax.conv_transpose",
        lambda x, k: lax.conv_transpose(x, k, (2, 2), "SAME", dimension_numbers=order),
        image,
        kernel,
        **loose,
    )
    yield call(
        "lax.conv_general_dilated_patches",
        lambda x: lax.conv_general_dilated_patches(x, (2, 3), (1, 1), "VALID"),
        image,
        **loose,
    )
    yield call(
        "lax.conv_general_dilated_local",
        lambda x, k: lax.conv_general_dilated_local(x, k, (1,), "VALID", (3,)),
        floats(n, 2, n),
        floats(4, 6, n - 2),
        **loose,
    )


def control_flow(n: int) -> Iterator[Call]:
    x, y = floats(n, n), floats(n, n, seed=1)
    yield call(
        "lax.map", lambda x: [lax.map(lambda r: r / r.max(), x), lax.map(jnp.sin, x, batch_size=3)], above_one(n, n)
    )
    yield call(
        "lax.scan",
        lambda x: [lax.scan(lambda c, r: (c + r, c * r), x[0], x, reverse=back) for back in (False, True)],
        x,
    )
    yield call("lax.fori_loop", lambda x: lax.fori_loop(0, 3, lambda i, x: x @ x / 8 + i, x), x)
    yield call(
        "lax.while_loop", lambda x: lax.while_loop(lambda x: (x**2).sum() > 1, lambda x: jnp.roll(x, 1, 0) / 2, x), x
    )
    yield call("lax.cond", lambda x, y: lax.cond(x[0, 0] > y[0, 0], lambda x, y: x - y.T, lambda x, y: y, x, y), x, y)
    branches = [lambda x: x, lambda x: x.T, lambda x: x[::-1]]
    yield call(
        "lax.switch",
        lambda i, x: lax.switch(i, branches, x),
        np.array(2, np.int32),
        x,
        exact=True,
    )
    yield call("lax.composite", lax.composite(lambda x: x * 2, "mine.twice"), x)
    yield call("lax.platform_dependent", lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos), x)

    def jacobi(matvec: Any, b: Any) -> Any:
        return lax.fori_loop(0, 30, lambda _, x: x + (b - matvec(x)) / (2 * n), b)

    yield call(
        "lax.custom_linear_solve",
        lambda a, b: lax.custom_linear_solve(lambda x: a @ x, b, jacobi, jacobi),
        np.eye(n, dtype=np.float32) * np.float32(2 * n) + probabilities(n, n),
        x,
        rtol=1e-4,
        atol=1e-5,
    )

    def newton(f: Any, x: Any) -> Any:
        return lax.fori_loop(0, 12, lambda _, x: x - f(x) / (3 * x * x), x)

    yield call(
        "lax.custom_root",
        lambda a: lax.custom_root(lambda x: x**3 - a, jnp.ones_like(a), newton, lambda g, y: y / g(jnp.ones_like(y))),
        above_one(n, n),
        rtol=1e-4,
    )


def collectives(n: int) -> Iterator[Call]:
    """Collectives along a vmapped axis; the mapped dim is sharded."""
    x, cube = floats(n, n), floats(n, n, n)

    def vmapped(function: Any) -> Any:
        return sw.vmap(function, axis_name="i")

    def send_elements(row: Any) -> Any:  # element k to member k: a transpose
        ones = jnp.ones(n, int)
        return lax.ragged_all_to_all(row, row, jnp.arange(n), ones, ones * lax.axis_index("i"), ones, axis_name="i")

    rotation = [(member, (member + 3) % n) for member in range(n)]
    along_axis: dict[str, Any] = {
        "all_gather": vmapped(lambda row: lax.all_gather(row, "i")),
        "all_to_all": vmapped(lambda row: lax.all_to_all(row, "i", 0, 0)),
        "axis_index": vmapped(lambda row: row + lax.axis_index("i")),
        "axis_size": vmapped(lambda row: row * lax.axis_size("i")),
        "pbroadcast": vmapped(lambda row: lax.pbroadcast(row, "i", 3)),
        "pmax": vmapped(lambda row: lax.pmax(row, "i")),
        "pmean": vmapped(lambda row: lax.pmean(row, "i")),
        "pmin": vmapped(lambda row: lax.pmin(row, "i")),
        "ppermute": vmapped(lambda row: lax.ppermute(row, "i", rotation)),
        "ppermute_start": vmapped(lambda row: lax.ppermute_start(row, "i", rotation).done()),
        "psum_start": vmapped(lambda row: lax.psum_start(row, "i").done()),
        "psum_scatter_start": vmapped(lambda row: lax.psum_scatter_start(row, "i", tiled=True).done()),
        "all_gather_start": vmapped(lambda row: lax.all_gather_start(row, "i").done()),
        "all_to_all_start": vmapped(lambda row: lax.all_to_all_start(row, "i", 0, 0).done()),
        "pdot": vmapped(lambda row: lax.pdot(row, row, "i", ((0,), (0,)))),
        "xeinsum": vmapped(lambda row: lax.xeinsum("j{i},j{i}->j", row, row)),
        "pshuffle": vmapped(lambda row: lax.pshuffle(row, "i", [destination for _, destination in rotation])),
        "psum": vmapped(lambda row: lax.psum(row, "i")),
        "psum_scatter": vmapped(lambda row: lax.psum_scatter(row, "i")),
        "pswapaxes": vmapped(lambda row: lax.pswapaxes(row, "i", 0)),
        "ragged_all_to_all": vmapped(send_elements),
    }
    for name, function in along_axis.items():
        yield call(f"lax.{name}", function, cube if name in ("all_to_all", "all_to_all_start", "pswapaxes") else x)


def creation(n: int) -> Iterator[Call]:
    """Functions without array arguments: their results are sharded."""
    yield call("lax.broadcasted_iota", lambda: lax.broadcasted_iota(np.int32, (n, n), 1))
    yield call("lax.empty", lambda: lax.empty((n, n), np.float32) * 0)
    yield call("lax.full", lambda: lax.full((n, n), 4.0))
    yield call("lax.iota", lambda: lax.iota(np.float32, n))
    state = np.array([1, 2, 3, 4], np.uint32)
    yield call("lax.rng_bit_generator", lambda: lax.rng_bit_generator(state, (n, n)))
    yield call("lax.shape_as_value", lambda: lax.shape_as_value((2, 3)) + jnp.arange(n)[:, None])


def linalg_functions(n: int) -> Iterator[Call]:
    x, y, z = well_conditioned(n, n), floats(n, n, seed=1), positive_definite(n, n)
    batch, batch_of_symmetric = well_conditioned(n, 3, 3), positive_definite(n, 3, 3)
    loose = {"rtol": 1e-3, "atol": 1e-4}
    single_and_batched: dict[str, tuple[Any, Any, Any]] = {
        "cholesky": (linalg.cholesky, z, batch_of_symmetric),
        "eig": (lambda x: jnp.sort(abs(linalg.eig(x)[0])), z, batch_of_symmetric),
        "eigh": (lambda x: [linalg.eigh(x)[1], abs(linalg.eigh(x)[0])], z, batch_of_symmetric),
        "hessenberg": (linalg.hessenberg, x, batch),
        "lu": (linalg.lu, x, batch),
        "qr": (linalg.qr, x, batch),
        "qdwh": (lambda x: linalg.qdwh(x.reshape(-1, x.shape[-1])), x, batch),
        "schur": (lambda x: abs(linalg.schur(x)[0]), z, batch_of_symmetric),
        "svd": (lambda x: linalg.svd(x, compute_uv=False), x, batch),
        "tridiagonal": (linalg.tridiagonal, z, batch_of_symmetric),
        "symmetric_product": (lambda x: linalg.symmetric_product(x, x, symmetrize_output=True), x, batch),
        "triangular_solve": (lambda x: linalg.triangular_solve(x, x, left_side=True, lower=True), x, batch),
    }
    for name, (function, one, many) in single_and_batched.items():
        yield call(f"lax.linalg.{name}", lambda x, b, f=function: [f(x), f(b)], one, many, rtol=1e-3, atol=1e-3)
    yield call("lax.linalg.cholesky_update", linalg.cholesky_update, np.linalg.cholesky(z).T.copy(), y[0], **loose)
    yield call("lax.linalg.householder_product", linalg.householder_product, y / n, probabilities(n), **loose)
    yield call(
        "lax.linalg.lu_pivots_to_permutation",
        lambda p: linalg.lu_pivots_to_permutation(p, n + 2),
        integers(n, n, low=0, high=n).clip(np.arange(n)).astype(np.int32),
    )
    yield call(
        "lax.linalg.ormqr",
        lambda a, t, c: [linalg.ormqr(a, t, c, left=left) for left in (False, True)],
        y / n,
        probabilities(n),
        x,
        **loose,
    )
    yield call("lax.linalg.tridiagonal_solve", linalg.tridiagonal_solve, y[0], above_one(n) + 6, y[1], y, **loose)


FAMILIES = (
    elementwise,
    shape_functions,
    indexing,
    along_axes,
    products,
    control_flow,
    collectives,
    creation,
    linalg_functions,
)
