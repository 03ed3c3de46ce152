"""Bad input raises a typed error with a clear message, instead of failing deep inside or being accepted."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
import shardwise.scipy.linalg
import shardwise.scipy.stats
from shardwise.sharding import PositionalSharding

X, V = np.ones((2, 3), np.float32), np.ones(3, np.float32)
C = (X + 1j).astype(np.complex64)
KEY = sw.random.key(0)
ONE_AXIS = r"axis must be one integer or None, not \(0, 1\)"


def deleted():
    x = jnp.ones(3)
    x.delete()
    return x


CASES = {
    "eigh of a vector": (lambda: jnp.linalg.eigh(V), ValueError, r"eigh: needs square matrices, .* not f32\[3\]"),
    "eigh of a wide matrix": (
        lambda: jnp.linalg.eigh(X),
        ValueError,
        r"eigh: needs square matrices, .* not f32\[2,3\]",
    ),
    "eigvalsh of a wide matrix": (lambda: jnp.linalg.eigvalsh(X), ValueError, "eigvalsh: needs square matrices"),
    "vecdot of other batches": (
        lambda: jnp.vecdot(np.ones((2, 3)), np.ones((4, 3))),
        ValueError,
        r"vecdot: the batch dims \(2,\) and \(4,\) of the operands do not broadcast",
    ),
    "matvec of other batches": (
        lambda: jnp.matvec(np.ones((2, 3, 4)), np.ones((5, 4))),
        ValueError,
        r"matvec: the batch dims \(2,\) and \(5,\)",
    ),
    "vecmat of other batches": (
        lambda: jnp.vecmat(np.ones((2, 3)), np.ones((5, 3, 4))),
        ValueError,
        r"vecmat: the batch dims \(2,\) and \(5,\)",
    ),
    "cross along no axis": (
        lambda: jnp.linalg.cross(X, X, axis=5),
        ValueError,
        "cross: axis 5 does not exist in an array of rank 2",
    ),
    "cross along half an axis": (
        lambda: jnp.linalg.cross(X, X, axis=1.5),
        TypeError,
        "cross: axis must be an integer, not 1.5",
    ),
    "nanargmax along two axes": (lambda: jnp.nanargmax(X, axis=(0, 1)), TypeError, f"nanargmax: {ONE_AXIS}"),
    "nanargmin along two axes": (lambda: jnp.nanargmin(X, axis=(0, 1)), TypeError, f"nanargmin: {ONE_AXIS}"),
    "argmax along two axes": (lambda: jnp.argmax(X, axis=(0, 1)), TypeError, f"argmax: {ONE_AXIS}"),
    "argmax along half an axis": (lambda: jnp.argmax(X, axis=1.5), TypeError, "argmax: an axis must be an int"),
    "sum along half an axis": (lambda: jnp.sum(X, axis=1.5), TypeError, "sum: an axis must be an int or None, not 1.5"),
    "mean along half an axis": (lambda: jnp.mean(X, axis=1.5), TypeError, "mean: an axis must be an int or None"),
    "max along half an axis": (lambda: jnp.max(X, axis=1.5), TypeError, "max: an axis must be an int or None, not 1.5"),
    "cumsum along half an axis": (lambda: jnp.cumsum(X, axis=1.5), TypeError, "cumsum: axis must be an integer"),
    "generalized_normal of more p": (
        lambda: sw.random.generalized_normal(KEY, np.array([1.0, 2.0])),
        ValueError,
        r"generalized_normal: p of shape \(2,\) does not broadcast to the shape \(\)",
    ),
    "multinomial of other counts": (
        lambda: sw.random.multinomial(KEY, np.array([3.0, 4.0]), np.ones((3, 2)) / 2),
        ValueError,
        r"multinomial: n of shape \(2,\) does not broadcast to the shape \(3,\)",
    ),
    "multinomial of another batch": (
        lambda: sw.random.multinomial(KEY, np.array([3, 4]), np.ones((2, 2)) / 2, shape=(4, 2)),
        ValueError,
        r"multinomial: p of shape \(2, 2\) does not broadcast to the shape \(4, 2\)",
    ),
    "multinomial of other outcomes": (
        lambda: sw.random.multinomial(KEY, 3, np.ones(2) / 2, shape=(4,)),
        ValueError,
        r"multinomial: the last dim of shape \(4,\) must have the size of that of p f32\[2\]",
    ),
    "treedef_tuple of a number": (
        lambda: sw.tree_util.treedef_tuple([3]),
        TypeError,
        "treedef_tuple: needs structures of pytrees, such as `tree.structure\\(x\\)`, not 3",
    ),
    "unique of negative size": (
        lambda: jnp.unique(np.array([1, 2]), size=-1),
        TypeError,
        "unique: size must not be negative: -1",
    ),
    "unique of half a size": (
        lambda: jnp.unique(np.array([1, 2]), size=1.5),
        TypeError,
        "unique: size must be an integer, not 1.5",
    ),
    "unique of nothing": (lambda: jnp.unique(np.ones(0), size=-1), TypeError, "unique: size must not be negative"),
    "nonzero of negative size": (lambda: jnp.nonzero(V, size=-1), TypeError, "nonzero: size must not be negative: -1"),
    "helmert of no columns": (
        lambda: sw.scipy.linalg.helmert(0),
        ValueError,
        "helmert: n must be at least 1, not 0",
    ),
    "helmert of half a column": (lambda: sw.scipy.linalg.helmert(2.5), TypeError, "helmert: n must be an integer"),
    "dft of half a size": (lambda: sw.scipy.linalg.dft(2.5), TypeError, "dft: n must be an integer, not 2.5"),
    "dft of negative size": (lambda: sw.scipy.linalg.dft(-1), ValueError, "dft: n must not be negative: -1"),
    "pad with three values": (
        lambda: jnp.pad(X, 1, constant_values=(1, 2, 3)),
        ValueError,
        r"pad: constant_values of shape \(3,\) does not broadcast to a low and a high value for each dim of f32\[2,3\]",
    ),
    "array_repr of a list": (
        lambda: jnp.array_repr([1, 2]),
        TypeError,
        r"array_repr: needs an array, not \[1, 2\] of type list; convert it with `jnp.asarray`",
    ),
    "array_str of a list": (lambda: jnp.array_str([1, 2]), TypeError, "array_str: needs an array"),
    "block_until_ready of a deleted array": (
        lambda: sw.block_until_ready({"x": deleted()}),
        RuntimeError,
        r"block_until_ready: the array is a f32\[3\] whose memory was freed",
    ),
    "method block_until_ready": (
        lambda: deleted().block_until_ready(),
        RuntimeError,
        r"is a f32\[3\] whose memory was freed",
    ),
    "named_call of a number": (lambda: sw.named_call(3), TypeError, "named_call needs a function, not 3"),
    "PositionalSharding of a number": (
        lambda: PositionalSharding(3),
        TypeError,
        r"PositionalSharding: needs devices, such as those of `devices\(\)`, not 3",
    ),
    "scalar_type_of a key": (
        lambda: sw.dtypes.scalar_type_of(KEY),
        TypeError,
        r"scalar_type_of: the elements of key<fry>\[\] are not numbers",
    ),
    "reshape to halves": (
        lambda: jnp.reshape(np.ones(2), (2.5, 1)),
        TypeError,
        r"reshape: every size of the shape \(2.5, 1\) must be an integer, not 2.5",
    ),
    "method reshape to halves": (lambda: jnp.ones(2).reshape(2.0, 1), TypeError, "reshape: every size of the shape"),
    "reshape to a float": (lambda: jnp.reshape(np.ones(2), 2.0), TypeError, "reshape: every size of the shape 2.0"),
    "cov in integers": (
        lambda: jnp.cov(X, dtype="int32"),
        ValueError,
        "cov: dtype must be a floating or complex dtype, not int32",
    ),
    "corrcoef in integers": (lambda: jnp.corrcoef(X, dtype="int32"), ValueError, "corrcoef: dtype must be a floating"),
    "kaiser of a complex beta": (lambda: jnp.kaiser(3, 1j), ValueError, "kaiser: beta must be a real number"),
    "he_normal in integers": (
        lambda: sw.nn.initializers.he_normal(dtype="int32")(KEY, (2, 3)),
        ValueError,
        "dtype must be a floating or complex dtype, not int32",
    ),
    "qr of an unknown mode": (
        lambda: jnp.linalg.qr(X, mode="foo"),
        ValueError,
        r"qr: mode must be 'reduced' \(or 'full'\), 'complete', 'r' or 'raw', not 'foo'",
    ),
    **{
        f"{name} of complex numbers in floats, {', '.join(options)}": (
            lambda name=name, options=options: getattr(jnp, name)(C, dtype="float32", **options),
            ValueError,
            r"var: dtype float32 is real, but c64\[2,3\] is complex; pass a complex dtype",
        )
        for name, options in (
            ("var", {}),
            ("std", {"axis": 0}),
            ("nanvar", {}),
            ("nanstd", {}),
            ("var", {"where": X > 0}),
        )
    },
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_raises(name):
    call, error, text = CASES[name]
    with pytest.raises(error, match=text) as caught:
        call()
    assert type(caught.value) is error


@pytest.mark.slow
@pytest.mark.jax
def test_good_input_like_jax():
    jax = pytest.importorskip("jax")
    values = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    for call in (
        lambda np_like, _: np_like.linalg.qr(values.T, mode="full"),
        lambda np_like, _: np_like.var(values + 1j, dtype="complex64"),
        lambda np_like, _: np_like.var(values, dtype="complex64"),
        lambda np_like, _: np_like.std(values + 1j, dtype="complex64", axis=0),
        lambda np_like, _: np_like.nanvar(values, dtype="complex64"),
        lambda np_like, _: np_like.var(values + 1j),
        lambda np_like, _: np_like.cov(values, dtype="float16"),
        lambda np_like, _: np_like.pad(values, 1, constant_values=((1, 2), (3, 4))),
        lambda np_like, _: np_like.kaiser(5, 2),
        lambda _, package: package.scipy.stats.mode(np.ones((0, 3), np.float32)),
        lambda _, package: package.scipy.stats.mode(np.ones((3, 0), np.float32), axis=None),
        lambda _, package: package.scipy.stats.mode(np.ones((3, 0), np.float32), axis=1, keepdims=True),
        lambda _, package: package.random.generalized_normal(package.random.key(0), np.array([1.0, 2.0]), (2,)),
        lambda _, package: package.random.multinomial(package.random.key(0), np.array([3.0, 4.0]), np.ones((2, 2)) / 2),
    ):
        expected, actual = (call(package.numpy, package) for package in (jax, sw))
        for want, got in zip(jax.tree.leaves(expected), sw.tree.leaves(actual), strict=True):
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=2e-3, atol=1e-5)
