"""Calls of the functions of `shardwise.numpy`, `.linalg` and `.fft` on arrays of `n` rows and columns."""

import io
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.numpy import fft, linalg
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
    with_nans,
)

UNARY = (
    *functions_with(jnp, "shardwise.numpy.elementwise", 1),
    *("absolute", "angle", "around", "conjugate", "deg2rad", "exp", "fabs", "frexp", "i0", "imag", "iscomplex"),
    *("isneginf", "isposinf", "isreal", "modf", "nan_to_num", "negative", "positive", "rad2deg", "real"),
    *("reciprocal", "rint", "signbit", "sinc", "spacing", "square", "abs", "conj", "degrees", "radians", "round"),
)
BINARY = (
    *("add", "arctan2", "atan2", "copysign", "divide", "divmod", "equal", "float_power", "floor_divide", "fmax"),
    *("fmin", "fmod", "greater", "greater_equal", "heaviside", "hypot", "isclose", "less", "less_equal", "logaddexp"),
    *("logaddexp2", "logical_and", "logical_or", "logical_xor", "maximum", "minimum", "mod", "multiply", "nextafter"),
    *("not_equal", "pow", "power", "remainder", "subtract", "true_divide"),
)
INTEGER_UNARY = ("bitwise_count", "bitwise_invert", "bitwise_not", "invert")
INTEGER_BINARY = (
    *("bitwise_and", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "gcd", "lcm"),
    *("left_shift", "right_shift"),
)
REDUCTIONS = (
    *("all", "amax", "amin", "any", "argmax", "argmin", "average", "count_nonzero", "max", "mean", "median", "min"),
    *("prod", "ptp", "std", "sum", "var"),
)
NAN_REDUCTIONS = (
    *("nanargmax", "nanargmin", "nanmax", "nanmean", "nanmedian", "nanmin", "nanprod", "nanstd", "nansum", "nanvar"),
)
CUMULATIVE = ("cumprod", "cumsum", "cumulative_prod", "cumulative_sum", "nancumprod", "nancumsum")
QUANTILES = np.array([0.1, 0.5], np.float32)
WINDOW_FUNCTIONS = ("bartlett", "blackman", "hamming", "hanning")


def along_each(function: Any) -> Any:
    """Reduce over all dims, along the first and along the last."""
    return lambda x: [function(x), function(x, axis=0), function(x, axis=-1)]


def along_both(function: Any) -> Any:
    return lambda x: [function(x, axis=0), function(x, axis=-1)]


def elementwise(n: int) -> Iterator[Call]:
    x, y, i, j = floats(n, n), floats(n, n, seed=1), integers(n, n), integers(n, n, low=0, high=7, seed=8)
    for name in UNARY:
        function = getattr(jnp, name)
        arguments = probabilities(n, n), above_one(n, n), -above_one(n, n)
        yield call(f"numpy.{name}", lambda *xs, f=function: [f(x) for x in xs], *arguments, exact=True)
    for name in BINARY:
        yield call(f"numpy.{name}", getattr(jnp, name), x, y, exact=True)
    for name in INTEGER_UNARY:
        yield call(f"numpy.{name}", getattr(jnp, name), i)
    for name in INTEGER_BINARY:
        yield call(f"numpy.{name}", getattr(jnp, name), i, j)
    yield call("numpy.ldexp", jnp.ldexp, x, i)
    yield call("numpy.clip", lambda x: jnp.clip(x, -0.5, 0.7), x, exact=True)
    yield call("numpy.where", jnp.where, x > 0, x, y[:, 0], exact=True)
    yield call("numpy.astype", lambda x: [jnp.astype(x, np.int8), jnp.astype(x, jnp.bfloat16)], 9 * x)
    yield call("numpy.copy", jnp.copy, x, exact=True)
    yield call("numpy.array", jnp.array, x, exact=True)
    yield call("numpy.asarray", jnp.asarray, x, exact=True)
    yield call("numpy.vectorize", jnp.vectorize(lambda row: row / row.sum(), signature="(n)->(n)"), above_one(n, n))
    yield call("numpy.frompyfunc", lambda x, y: jnp.frompyfunc(lambda a, b: a + 2 * b, 2, 1).reduce(x, axis=0), x, y)
    yield call("numpy.ufunc", lambda x: [jnp.add.reduce(x), jnp.maximum.accumulate(x, axis=1)], x)
    yield call("numpy.piecewise", lambda x: jnp.piecewise(x, [x < 0, x > 1], [lambda x: -x, 5.0, lambda x: x * x]), x)
    yield call("numpy.polyval", lambda p, x: [jnp.polyval(p, x), jnp.polyval(p, x[0])], floats(n), x)
    yield call("numpy.interp", jnp.interp, x, np.linspace(-2, 2, n, dtype=np.float32), floats(n))
    yield call("numpy.isscalar", lambda x: np.array(jnp.isscalar(x)), x, compiled=False)


def along_axes(n: int) -> Iterator[Call]:
    x, holes = floats(n, n), with_nans(n, n)
    yield call("numpy.minmax", along_each(jnp.minmax), x, exact=True)
    for mode in ("largest", "smallest"):
        top = partial(jnp.top_k, mode=mode)
        yield call("numpy.top_k", lambda x, top=top: [top(x, 2, axis=0), top(x, 2)], x, exact=True)
    for name in REDUCTIONS:
        yield call(f"numpy.{name}", along_each(getattr(jnp, name)), x if name != "prod" else probabilities(n, n))
    for name in NAN_REDUCTIONS:
        yield call(f"numpy.{name}", along_each(getattr(jnp, name)), holes)
    for name in CUMULATIVE:
        yield call(
            f"numpy.{name}", along_both(getattr(jnp, name)), holes if name.startswith("nan") else above_one(n, n)
        )
    for name in ("percentile", "nanpercentile"):
        function = getattr(jnp, name)
        yield call(f"numpy.{name}", lambda x, f=function: along_each(lambda x, **k: f(x, 30.0, **k))(x), holes)
    for name in ("quantile", "nanquantile"):
        function = getattr(jnp, name)
        yield call(f"numpy.{name}", lambda x, f=function: along_each(lambda x, **k: f(x, QUANTILES, **k))(x), holes)
    for name in ("sort", "argsort"):
        yield call(f"numpy.{name}", along_both(getattr(jnp, name)), holes, exact=True)
    yield call("numpy.partition", lambda x: [jnp.partition(x, 2, axis=0), jnp.partition(x, 2)], x, exact=True)
    yield call("numpy.argpartition", lambda x: [jnp.argpartition(x, 2, axis=0), jnp.argpartition(x, 2)], x)
    yield call("numpy.lexsort", lambda i, x: [jnp.lexsort((x, i)), jnp.lexsort((x, i), axis=0)], integers(n, n), x)
    yield call("numpy.sort_complex", jnp.sort_complex, complex_numbers(n, n), exact=True)
    yield call("numpy.searchsorted", jnp.searchsorted, np.sort(floats(n)), x)
    yield call("numpy.digitize", jnp.digitize, x, np.sort(floats(n)))
    yield call("numpy.cov", lambda x: [jnp.cov(x), jnp.cov(x, rowvar=False)], x)
    yield call("numpy.corrcoef", jnp.corrcoef, x)
    yield call("numpy.histogram", lambda x: jnp.histogram(x, 5), x)
    yield call("numpy.histogram2d", lambda x, y: jnp.histogram2d(x, y, 4), floats(n), floats(n, seed=1))
    yield call("numpy.histogram_bin_edges", lambda x: jnp.histogram_bin_edges(x, 5), x)
    yield call("numpy.histogramdd", lambda x: jnp.histogramdd(x[:, :2], 3), x)
    yield call("numpy.bincount", lambda i: jnp.bincount(i, length=n), integers(n, low=0))
    yield call("numpy.diff", lambda x: [*along_both(jnp.diff)(x), jnp.diff(x, 3)], x)
    yield call("numpy.ediff1d", jnp.ediff1d, x)
    yield call("numpy.gradient", jnp.gradient, x)
    yield call("numpy.trapezoid", along_both(jnp.trapezoid), x)
    yield call("numpy.unwrap", along_both(jnp.unwrap), 4 * x, atol=1e-5)
    yield call("numpy.apply_along_axis", lambda x: [jnp.apply_along_axis(jnp.cumsum, axis, x) for axis in (0, 1)], x)
    yield call("numpy.apply_over_axes", lambda x: jnp.apply_over_axes(jnp.sum, x, [0, 1]), x)


def indexing(n: int) -> Iterator[Call]:
    x, i, row = floats(n, n), integers(n, n), integers(n, low=0, high=n)
    sized = {"size": 2 * n, "fill_value": -1}
    for name in ("union1d", "intersect1d", "setdiff1d", "setxor1d"):
        function = getattr(jnp, name)
        yield call(f"numpy.{name}", lambda a, b, f=function: f(a, b, **sized), i, i + 4)
    for name in ("unique", "unique_all", "unique_counts", "unique_inverse", "unique_values"):
        function = getattr(jnp, name)
        yield call(f"numpy.{name}", lambda i, f=function: f(i, **sized), i)
        yield call(f"numpy.{name}", function, i, compiled=False)
    for name in ("nonzero", "flatnonzero", "argwhere"):
        function = getattr(jnp, name)
        yield call(f"numpy.{name}", lambda i, f=function: f(i % 3, size=n), i)
        yield call(f"numpy.{name}", lambda i, f=function: f(i % 3), i, compiled=False)
    yield call("numpy.isin", jnp.isin, i, integers(n))
    yield call("numpy.take", lambda x, i: [jnp.take(x, i, axis=0), jnp.take(x, i, axis=1)], x, row, exact=True)
    yield call(
        "numpy.take_along_axis",
        lambda x, i: [jnp.take_along_axis(x, i, axis) for axis in (0, 1)],
        x,
        integers(n, n, low=0, high=n),
        exact=True,
    )
    yield call("numpy.put", lambda x, i: jnp.put(x, i, 7.0, inplace=False), x, row, exact=True)
    yield call(
        "numpy.put_along_axis",
        lambda x, i: [
            jnp.put_along_axis(x, i[None], 9.0, 0, inplace=False),
            jnp.put_along_axis(x, i[:, None], 9.0, 1, inplace=False),
        ],
        x,
        row,
        exact=True,
    )
    yield call("numpy.place", lambda x: jnp.place(x, x > 0, np.arange(3.0), inplace=False), x, exact=True)
    yield call("numpy.extract", lambda x: jnp.extract(x > 0, x, size=n, fill_value=0), x, exact=True)
    yield call("numpy.extract", lambda x: jnp.extract(x > 0, x), x, compiled=False, exact=True)
    yield call(
        "numpy.compress",
        lambda b, x: [jnp.compress(b, x, axis, size=n, fill_value=0) for axis in (0, 1)],
        row > 3,
        x,
        exact=True,
    )
    yield call("numpy.ravel_multi_index", lambda i, j: jnp.ravel_multi_index((i, j), (n, n), mode="clip"), i, i + 3)
    yield call("numpy.unravel_index", lambda i: jnp.unravel_index(i, (n, 2)), row)
    yield call("numpy.ix_", lambda i, x: x[jnp.ix_(i, i[:3])], row, x, exact=True)
    yield call("numpy.fill_diagonal", lambda x: jnp.fill_diagonal(x, 2.0, inplace=False), x, exact=True)
    yield call("numpy.trim_zeros", jnp.trim_zeros, np.maximum(integers(n), 0), compiled=False)


def shape_functions(n: int) -> Iterator[Call]:
    x, y, cube, row = floats(n, n), floats(n, n, seed=1), floats(n, 2, n), floats(n)
    rearrangements = {
        "array_split": lambda x: [jnp.array_split(x, 3, axis) for axis in (0, 1)],
        "atleast_1d": jnp.atleast_1d,
        "atleast_2d": jnp.atleast_2d,
        "atleast_3d": jnp.atleast_3d,
        "broadcast_to": lambda x: jnp.broadcast_to(x, (2, n, n)),
        "delete": lambda x: [jnp.delete(x, 3, axis) for axis in (0, 1, None)],
        "diag": lambda x: [jnp.diag(x, 1), jnp.diag(x[0])],
        "diagflat": jnp.diagflat,
        "diagonal": jnp.diagonal,
        "dsplit": lambda x: jnp.dsplit(x[None], 2),
        "expand_dims": lambda x: jnp.expand_dims(x, (0, -1)),
        "flip": lambda x: [jnp.flip(x), jnp.flip(x, 0)],
        "fliplr": jnp.fliplr,
        "flipud": jnp.flipud,
        "hsplit": lambda x: jnp.hsplit(x, 2),
        "matrix_transpose": jnp.matrix_transpose,
        "moveaxis": lambda x: jnp.moveaxis(x, 0, -1),
        "permute_dims": lambda x: jnp.permute_dims(x, (1, 0)),
        "ravel": lambda x: [jnp.ravel(x), jnp.ravel(x, "F")],
        "repeat": lambda x: [jnp.repeat(x, 2, axis) for axis in (0, 1, None)],
        "reshape": lambda x: [jnp.reshape(x, (2, -1)), jnp.reshape(x, (-1, 2)), jnp.reshape(x, (n, 2, n // 2))],
        "resize": lambda x: jnp.resize(x, (n + 3, n - 1)),
        "roll": lambda x: [jnp.roll(x, 3), jnp.roll(x, -1, axis=0), jnp.roll(x, 2, axis=1)],
        "rollaxis": lambda x: jnp.rollaxis(x, 1),
        "rot90": lambda x: [jnp.rot90(x), jnp.rot90(x, 2)],
        "split": lambda x: [jnp.split(x, 2, axis) for axis in (0, 1)],
        "squeeze": lambda x: jnp.squeeze(x[:, None], 1),
        "swapaxes": lambda x: jnp.swapaxes(x, 0, 1),
        "tile": lambda x: jnp.tile(x, (2, 3)),
        "transpose": jnp.transpose,
        "tril": lambda x: jnp.tril(x, 1),
        "triu": lambda x: jnp.triu(x, -1),
        "unstack": lambda x: [jnp.unstack(x), jnp.unstack(x, axis=1)],
        "vsplit": lambda x: jnp.vsplit(x, [3]),
        "pad": lambda x: [
            *(jnp.pad(x, 2, mode=mode) for mode in ("constant", "edge", "reflect", "symmetric", "wrap", "maximum")),
            jnp.pad(x, ((1, 0), (0, 3)), constant_values=4.0),
        ],
    }
    for name, function in rearrangements.items():
        yield call(f"numpy.{name}", function, x, exact=True)
    joins = {
        "append": lambda x, y: [jnp.append(x, y), jnp.append(x, y, axis=0), jnp.append(x, y, axis=1)],
        "block": lambda x, y: jnp.block([[x, y], [y, x]]),
        "broadcast_arrays": lambda x, y: jnp.broadcast_arrays(x[:, None], y),
        "column_stack": lambda x, y: jnp.column_stack([x[:, 0], y]),
        "concat": lambda x, y: jnp.concat([x, y[:3]]),
        "concatenate": lambda x, y: [jnp.concatenate([x, y], axis) for axis in (0, 1)],
        "dstack": lambda x, y: jnp.dstack([x, y]),
        "hstack": lambda x, y: jnp.hstack([x, y]),
        "insert": lambda x, y: [jnp.insert(x, 2, y[0], axis) for axis in (0, 1)],
        "stack": lambda x, y: [jnp.stack([x, y], axis) for axis in (0, -1)],
        "vstack": lambda x, y: jnp.vstack([x, y]),
        "meshgrid": lambda x, y: jnp.meshgrid(x[0], y[:, 0]),
        "choose": lambda x, y: jnp.choose((x > 0).astype(np.int32), [x, y], mode="clip"),
        "select": lambda x, y: jnp.select([x < 0, x < 1], [x, y], 3.0),
    }
    for name, function in joins.items():
        yield call(f"numpy.{name}", function, x, y, exact=True)
    yield call("numpy.r_", lambda x, y: jnp.r_[x, y], row, row + 1, exact=True)
    yield call("numpy.c_", lambda x, y: jnp.c_[x, y], row, row + 1, exact=True)
    yield call("numpy.moveaxis", lambda x: jnp.moveaxis(x, (0, 1), (2, 0)), cube, exact=True)


def other_functions(n: int) -> Iterator[Call]:
    x, bytes_ = floats(n, n), integers(n, n, low=0, high=255, dtype=np.uint8)
    yield call("numpy.packbits", lambda b: [jnp.packbits(b, axis) for axis in (0, 1, None)], x > 0)
    yield call("numpy.unpackbits", lambda b: [jnp.unpackbits(b, axis) for axis in (0, 1, None)], bytes_)
    yield call("numpy.allclose", lambda x: [jnp.allclose(x, x + 1e-6), jnp.allclose(x, x + 1)], x)
    yield call("numpy.array_equal", lambda x: [jnp.array_equal(x, x), jnp.array_equal(x, x.T)], x)
    yield call("numpy.array_equiv", lambda x: [jnp.array_equiv(x, x[0]), jnp.array_equiv(x, x)], x)
    for name in ("full_like", "ones_like", "zeros_like"):
        extra = (3.0,) if name == "full_like" else ()
        function = getattr(jnp, name)
        yield call(f"numpy.{name}", lambda x, f=function, extra=extra: f(x, *extra) + x, x, exact=True)
    yield call("numpy.empty_like", lambda x: jnp.empty_like(x) * 0 + x, x, exact=True)
    for name in ("tril_indices_from", "triu_indices_from", "diag_indices_from"):
        function = getattr(jnp, name)
        yield call(f"numpy.{name}", lambda x, f=function: x[f(x)], x, exact=True)


def creation(n: int) -> Iterator[Call]:
    """Functions without array arguments: their results are sharded."""
    for name in WINDOW_FUNCTIONS:
        function = getattr(jnp, name)
        yield call(f"numpy.{name}", lambda f=function: f(n))
    creators = {
        "arange": lambda: jnp.arange(2, 2 + n),
        "diag_indices": lambda: jnp.diag_indices(n),
        "empty": lambda: jnp.empty((n, n)) * 0,
        "eye": lambda: jnp.eye(n, n, 1),
        "fromfunction": lambda: jnp.fromfunction(lambda i, j: i * 10 + j, (n, n)),
        "full": lambda: jnp.full((n, n), 3),
        "geomspace": lambda: jnp.geomspace(1.0, 100.0, n),
        "identity": lambda: jnp.identity(n),
        "indices": lambda: jnp.indices((n, n)),
        "kaiser": lambda: jnp.kaiser(n, 3.0),
        "linspace": lambda: jnp.linspace(0.0, 1.0, n),
        "logspace": lambda: jnp.logspace(0.0, 2.0, n),
        "mask_indices": lambda: jnp.mask_indices(n, jnp.triu, size=n),
        "mgrid": lambda: jnp.mgrid[0:n, 0:n],
        "ogrid": lambda: jnp.ogrid[0:n, 0:n],
        "ones": lambda: jnp.ones((n, n)),
        "tri": lambda: jnp.tri(n),
        "tril_indices": lambda: jnp.tril_indices(n),
        "triu_indices": lambda: jnp.triu_indices(n),
        "zeros": lambda: jnp.zeros((n, n)),
    }
    for name, function in creators.items():
        yield call(f"numpy.{name}", function)


def save_and_load(x: Any) -> Any:
    file = io.BytesIO()
    jnp.save(file, x)
    file.seek(0)
    return jnp.load(file)


def host_functions(n: int) -> Iterator[Call]:
    """Functions that return Python objects, or write and read files."""
    x = floats(n, n)
    queries = {
        "array_repr": lambda x: np.frombuffer(jnp.array_repr(x).encode(), np.uint8),
        "array_str": lambda x: np.frombuffer(jnp.array_str(x).encode(), np.uint8),
        "iscomplexobj": lambda x: np.array(jnp.iscomplexobj(x)),
        "isrealobj": lambda x: np.array(jnp.isrealobj(x)),
        "load": save_and_load,
        "ndim": lambda x: np.array(jnp.ndim(x)),
        "result_type": lambda x: np.zeros(1, jnp.result_type(x, 2)),
        "shape": lambda x: np.array(jnp.shape(x)),
        "size": lambda x: np.array(jnp.size(x)),
    }
    for name, function in queries.items():
        yield call(f"numpy.{name}", function, x, compiled=False, exact=True)


def products(n: int) -> Iterator[Call]:
    x, y, row, other = floats(n, n), floats(n, n, seed=1), floats(n), floats(n, seed=1)
    loose = {"atol": 1e-5}
    for name in ("dot", "inner", "matmul", "vecdot", "vdot"):
        yield call(f"numpy.{name}", getattr(jnp, name), x, y, **loose)
    yield call("numpy.matvec", jnp.matvec, x, row, **loose)
    yield call("numpy.vecmat", jnp.vecmat, row, x, **loose)
    yield call("numpy.outer", jnp.outer, row, other)
    yield call("numpy.kron", jnp.kron, x, y[:2])
    yield call("numpy.cross", jnp.cross, floats(n, 3), floats(n, 3, seed=1), **loose)
    yield call("numpy.cross", lambda x, y: jnp.cross(x, y, axis=0), floats(3, n), floats(3, n, seed=1), **loose)
    yield call("numpy.einsum", lambda x, y: [jnp.einsum(e, x, y) for e in ("ij,jk->ik", "ij,kj->", "ii,ij->j")], x, y)
    yield call("numpy.tensordot", lambda x, y: [jnp.tensordot(x, y, axes) for axes in (0, 1, 2)], x, y, **loose)
    yield call("numpy.trace", jnp.trace, x)
    yield call("numpy.convolve", lambda x, y: [jnp.convolve(x, y, m) for m in ("full", "same", "valid")], row, other)
    yield call("numpy.correlate", lambda x, y: [jnp.correlate(x, y, m) for m in ("full", "same", "valid")], row, other)
    for name in ("polyadd", "polysub", "polymul"):
        yield call(f"numpy.{name}", getattr(jnp, name), row, other, **loose)
    yield call("numpy.polydiv", jnp.polydiv, row, np.array([4.0, 1.0, 0.5], np.float32), **loose)
    yield call("numpy.polyder", jnp.polyder, row)
    yield call("numpy.polyint", jnp.polyint, row)
    yield call("numpy.polyfit", lambda x, y: jnp.polyfit(x, y, 2), row, other, rtol=1e-3, atol=1e-4)
    yield call("numpy.poly", jnp.poly, probabilities(n), **loose)
    # The roots of x^n - 2, which are well separated.
    roots = np.array([1.0, *[0.0] * (n - 2), -2.0], np.float32)
    yield call("numpy.roots", lambda p: jnp.sort(abs(jnp.roots(p, strip_zeros=False))), roots, rtol=1e-3, atol=1e-4)
    yield call("numpy.vander", lambda x: jnp.vander(x, 4), probabilities(n))


def linalg_functions(n: int) -> Iterator[Call]:
    x, y, batch = well_conditioned(n, n), floats(n, n, seed=1), well_conditioned(n, 3, 3)
    loose = {"rtol": 1e-3, "atol": 1e-4}
    single_and_batched = {
        "cond": linalg.cond,
        "det": linalg.slogdet,
        "inv": linalg.inv,
        "matrix_norm": linalg.matrix_norm,
        "matrix_rank": linalg.matrix_rank,
        "matrix_transpose": linalg.matrix_transpose,
        "pinv": linalg.pinv,
        "qr": linalg.qr,
        "slogdet": linalg.slogdet,
        "svdvals": linalg.svdvals,
        "eigvals": lambda x: jnp.sort(abs(linalg.eigvals(x))),
        "eig": lambda x: jnp.sort(abs(linalg.eig(x)[0])),
        "svd": lambda x: [linalg.svd(x, compute_uv=False), from_svd(*linalg.svd(x, full_matrices=False))],
        "norm": lambda x: [linalg.norm(x, axis=(-2, -1)), linalg.norm(x, 1, axis=-1)],
        "vector_norm": lambda x: [linalg.vector_norm(x), linalg.vector_norm(x, axis=-1, ord=3)],
        "diagonal": linalg.diagonal,
        "trace": linalg.trace,
        "matrix_power": lambda x: linalg.matrix_power(x / 8, 3),
    }
    for name, function in single_and_batched.items():
        arguments = (
            (positive_definite(n, n), positive_definite(n, 3, 3))
            if name.startswith(("eig", "svd", "cond"))
            else (x, batch)
        )
        yield call(f"numpy.linalg.{name}", lambda x, b, f=function: [f(x), f(b)], *arguments, **loose)
    yield call("numpy.linalg.det", linalg.det, batch, **loose)
    for name in ("cholesky", "eigh", "eigvalsh"):
        function = getattr(linalg, name)
        reconstruct = (lambda x: from_eigenvectors(*linalg.eigh(x))) if name == "eigh" else function
        arguments = positive_definite(n, n), positive_definite(n, 3, 3)
        yield call(f"numpy.linalg.{name}", lambda x, b, f=reconstruct: [f(x), f(b)], *arguments, **loose)
    yield call("numpy.linalg.cross", linalg.cross, floats(n, 3), floats(n, 3, seed=1), **loose)
    yield call(
        "numpy.linalg.cross", lambda x, y: linalg.cross(x, y, axis=0), floats(3, n), floats(3, n, seed=1), **loose
    )
    for name in ("matmul", "outer", "tensordot", "vecdot"):
        arguments = (x[0], y[0]) if name == "outer" else (x, y)
        yield call(f"numpy.linalg.{name}", getattr(linalg, name), *arguments, **loose)
    yield call("numpy.linalg.multi_dot", lambda x, y: linalg.multi_dot([x, y, x]), x, y, rtol=1e-3, atol=1e-3)
    yield call("numpy.linalg.solve", lambda a, x, b: [linalg.solve(a, x), linalg.solve(b, b)], x, y, batch, **loose)
    yield call("numpy.linalg.lstsq", lambda x, y: linalg.lstsq(x, y)[0], x, y, **loose)
    yield call("numpy.linalg.tensorinv", lambda x: linalg.tensorinv(x.reshape(n, 2, n // 2), 1), x, **loose)
    yield call("numpy.linalg.tensorsolve", linalg.tensorsolve, x, y[0], **loose)


def from_svd(u: Any, s: Any, vh: Any) -> Any:
    """Multiply the factors of a singular value decomposition, whose signs are not determined."""
    return jnp.matmul(u * s[..., None, :], vh)


def from_eigenvectors(values: Any, vectors: Any) -> Any:
    return from_svd(vectors, values, jnp.matrix_transpose(vectors))


def fft_functions(n: int) -> Iterator[Call]:
    x, z = floats(n, n), complex_numbers(n, n)
    loose = {"rtol": 1e-4, "atol": 1e-5}
    for name in ("fft", "ifft", "hfft", "irfft"):
        yield call(f"numpy.fft.{name}", along_both(getattr(fft, name)), z, **loose)
    for name in ("rfft", "ihfft"):
        yield call(f"numpy.fft.{name}", along_both(getattr(fft, name)), x, **loose)
    for name in ("fft2", "ifft2", "irfft2", "fftn", "ifftn", "irfftn"):
        yield call(f"numpy.fft.{name}", getattr(fft, name), z, **loose)
    for name in ("rfft2", "rfftn"):
        yield call(f"numpy.fft.{name}", getattr(fft, name), x, **loose)
    for name in ("fftshift", "ifftshift"):
        function = getattr(fft, name)
        yield call(f"numpy.fft.{name}", lambda x, f=function: [f(x), f(x, axes=0), f(x, axes=1)], x, exact=True)
    for name in ("fftfreq", "rfftfreq"):
        function = getattr(fft, name)
        yield call(f"numpy.fft.{name}", lambda f=function: f(n, 0.5))


FAMILIES = (
    elementwise,
    along_axes,
    indexing,
    shape_functions,
    other_functions,
    creation,
    host_functions,
    products,
    linalg_functions,
    fft_functions,
)
