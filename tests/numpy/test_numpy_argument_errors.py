"""Wrong arguments of numpy functions: the typed error and its text."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp

X, V, N = np.ones((2, 3), np.float32), np.ones(3, np.float32), np.arange(3)
EYE, EMPTY = np.eye(3, dtype=np.float32), np.ones((0,), np.float32)
MEAN = jnp.ufunc(lambda x, y: (x + y) / 2, 2, 1)
CORE = jnp.vectorize(jnp.dot, signature="(n),(n)->()")

# Calls by the module that raises the error; each with the type of the error and the start of its message.
CASES = [
    # ordering
    (lambda: jnp.lexsort([]), TypeError, "lexsort: at least one key is required"),
    (lambda: jnp.sort(V, kind="heapsort"), TypeError, "sort: the only algorithm is a stable sort; omit `kind`"),
    (
        lambda: jnp.quantile(X, 0.5, axis=1, weights=np.ones(2), method="inverted_cdf"),
        ValueError,
        r"quantile: weights .* must have the shape of f32\[2,3\], or one weight per index along axis 1",
    ),
    # calculus
    (lambda: jnp.interp(V + 1j, V, V), ValueError, "interp: x and xp must be real, not "),
    # selection
    (lambda: jnp.choose(N, []), ValueError, "choose: needs at least one choice"),
    (lambda: jnp.choose(N, [V, V], mode="fill"), ValueError, "choose: mode must be raise, wrap or clip, not 'fill'"),
    (lambda: jnp.compress(N > 0, V, size=4), ValueError, r"compress: size must be from 0 to 3, the size of dim 0 of"),
    (lambda: jnp.place(V, V > 0, EMPTY, inplace=False), ValueError, r"place: vals must not be empty: f32\[0\]"),
    (
        lambda: jnp.put(V, N, 1.0, mode="raise", inplace=False),
        NotImplementedError,
        "put: mode='raise' is not supported; use 'clip' or 'wrap'",
    ),
    (lambda: jnp.put(V, V, 1.0, inplace=False), TypeError, r"put: indices must be integers, not f32\[3\]"),
    (
        lambda: jnp.put_along_axis(X, V, 1.0, axis=0, inplace=False),
        TypeError,
        r"put_along_axis: indices must be integers, not f32\[3\]",
    ),
    (
        lambda: jnp.put_along_axis(X, N, 1.0, axis=0, inplace=False),
        ValueError,
        r"put_along_axis: the indices .*\[3\] must have the rank of f32\[2,3\]",
    ),
    (lambda: jnp.ravel_multi_index((N,), (3,), order="K"), ValueError, "ravel_multi_index: order must be 'C' or 'F'"),
    (
        lambda: jnp.ravel_multi_index((V,), (3,)),
        ValueError,
        r"ravel_multi_index: indices must be integers, not f32\[3\]",
    ),
    # grids
    (lambda: jnp.meshgrid(V, copy=False), ValueError, "meshgrid: copy=False is not supported"),
    (lambda: jnp.r_[()], IndexError, "r_: needs at least one number, slice or array"),
    # norms
    (lambda: jnp.linalg.cond(X, p=1), ValueError, r"cond: p=1 needs square matrices, not f32\[2,3\]"),
    (lambda: jnp.linalg.matrix_rank(X, rtol=0.1, tol=0.1), ValueError, "matrix_rank: pass `tol` or `rtol`, not both"),
    # linear systems
    (
        lambda: jnp.linalg.slogdet(1j * EYE, method="qr"),
        NotImplementedError,
        "slogdet: method 'qr' does not support complex",
    ),
    (lambda: jnp.linalg.pinv(X, rtol=0.1, rcond=0.1), ValueError, "pinv: `rcond` is a deprecated name of `rtol`"),
    (lambda: jnp.linalg.tensorinv(EYE, ind=0), ValueError, "tensorinv: ind must be positive, not 0"),
    (
        lambda: jnp.linalg.tensorinv(X, ind=1),
        ValueError,
        r"tensorinv: the first 1 dims of f32\[2,3\] must have as many elements as the others, not 2 and 3",
    ),
    (
        lambda: jnp.linalg.tensorsolve(X, V),
        ValueError,
        r"tensorsolve: f32\[2,3\] must map as many elements as f32\[3\]",
    ),
    # vectorized
    (lambda: jnp.vectorize(sum, excluded=[1.5]), TypeError, "vectorize: `excluded` must contain positions and names"),
    (lambda: jnp.vectorize(sum, excluded=[-1]), ValueError, "vectorize: positions in `excluded` cannot be negative"),
    (lambda: CORE(1.0, V), ValueError, r"vectorize: f32\[\]~ lacks the core dims \(n\) of the signature"),
    (
        lambda: jnp.vectorize(lambda x: (x, x), signature="(n)->(n)")(V),
        TypeError,
        "vectorize: the signature has 1 results, but the function returned 2",
    ),
    (lambda: jnp.ufunc(3, 2, 1), TypeError, "ufunc: needs a function, not 3"),
    (lambda: MEAN.reduce(V, where=V > 0), ValueError, r".*reduce: the function has no identity, so `where` needs"),
    (lambda: MEAN.reduce(X, axis=(0, 1)), NotImplementedError, r".*reduce: axis must be one axis, or None for all"),
    (lambda: MEAN.reduceat(V, X.astype(int)), ValueError, r".*reduceat: indices must have 1 dim, not "),
    (lambda: jnp.ufunc(abs, 1, 1).outer(V, V), ValueError, r".*outer: needs a function of 2 operands, not of 1"),
    # insertion
    (lambda: jnp.delete(V, 1.5), ValueError, "delete: indices must be an integer, a slice, or a 1-D array of integers"),
    # polynomials
    (lambda: jnp.poly(X), ValueError, r"poly: seq_of_zeros must have rank 1 or be a square matrix, not f32\[2,3\]"),
    (lambda: jnp.polyfit(X, V, 1), TypeError, r"polyfit: x must have rank 1 and at least one element, not f32\[2,3\]"),
    # einsum
    (lambda: jnp.einsum("ij->ii", X), ValueError, "einsum: invalid equation 'ij->ii'"),
    # triangles
    (lambda: jnp.diagonal(V), ValueError, r"diagonal: needs an array of 2 or more dims, not f32\[3\]"),
    (lambda: jnp.trace(X, out=X), NotImplementedError, "trace: arrays are immutable, so `out` must be None"),
    (lambda: jnp.diag_indices(-1), ValueError, "diag_indices: n and ndim cannot be negative: -1 and 2"),
    (
        lambda: jnp.fill_diagonal(X, 1.0, wrap=True, inplace=False),
        NotImplementedError,
        "fill_diagonal: `wrap=True` is not supported",
    ),
    (lambda: jnp.fill_diagonal(V, 1.0, inplace=False), ValueError, "fill_diagonal: needs a matrix, or 3 or more dims"),
    (lambda: jnp.fill_diagonal(X, EMPTY, inplace=False), ValueError, r"fill_diagonal: val f32\[0\] is empty"),
    # creation
    (lambda: jnp.arange(1j), TypeError, "arange: needs concrete real numbers"),
    (lambda: jnp.eye(3, k=0.5), TypeError, "eye: k, the offset of the diagonal, must be an integer, not 0.5"),
    (lambda: jnp.zeros((-1,)), ValueError, r"sizes of a shape must not be negative: \(-1,\)"),
    # decompositions and products
    (
        lambda: jnp.linalg.svd(EYE, hermitian=True, subset_by_index=(0, 1)),
        NotImplementedError,
        "svd: subset_by_index is not supported with hermitian=True",
    ),
    (lambda: jnp.linalg.cross(np.ones(2), np.ones(2)), ValueError, "cross: the size along axis -1 must be 3"),
    (lambda: jnp.linalg.matrix_power(X, 2), TypeError, r"matrix_power: a must hold square matrices, not f32\[2,3\]"),
    # methods of arrays
    (lambda: jnp.reshape(V, (-1, -1)), TypeError, r"reshape: only one size can be -1, shape \(-1, -1\) has 2"),
    (lambda: jnp.ones((2, 3)).transpose(0), ValueError, r"transpose: axes \(0,\) are not a permutation of the dims"),
    (lambda: jnp.broadcast_to(X, (3,)), TypeError, r"broadcast_to: f32\[2,3\] does not broadcast to \(3,\)"),
    (lambda: len(jnp.ones(())), TypeError, "a 0-d array has no length"),
    (lambda: jnp.round(N, -1), NotImplementedError, "round: integers cannot be rounded to -1 decimals"),
    (lambda: jnp.max(EMPTY), ValueError, r"max: "),
]


@pytest.mark.parametrize(("call", "error", "text"), CASES, ids=[text.replace("\\", "")[:40] for _, _, text in CASES])
def test_wrong_arguments_raise(call, error, text):
    with pytest.raises(error, match=f"^{text}") as caught:
        call()
    assert type(caught.value) is error


def test_wrong_arguments_raise_in_a_trace_too():
    with pytest.raises(ValueError, match=r"^cond: p=1 needs square matrices, not f32\[2,3\]"):
        sw.eval_shape(lambda x: jnp.linalg.cond(x, p=1), X)
