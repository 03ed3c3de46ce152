"""Type promotion of basic functions: values, dtypes and weak types agree with JAX."""

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

OPERANDS = {
    "f32": np.array([1.5, -2.0], np.float32),
    "bf16": np.array([1.5, -2.0], ml_dtypes.bfloat16),
    "f16": np.array([1.5, -2.0], np.float16),
    "i32": np.array([3, -2], np.int32),
    "i8": np.array([3, -2], np.int8),
    "u8": np.array([3, 2], np.uint8),
    "u32": np.array([3, 2], np.uint32),
    "bool": np.array([True, False]),
    "c64": np.array([1 + 2j, 3], np.complex64),
    "True": True,
    "2": 2,
    "2.5": 2.5,
    "1j": 1j,
}
FUNCTIONS = ["add", "multiply", "divide", "maximum", "equal", "less"]


def assert_same(ours, theirs):
    assert ours.dtype == theirs.dtype
    if ours.dtype != np.bool_:  # JAX has weakly typed booleans; they promote like strongly typed ones
        assert ours.weak_type == theirs.weak_type
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=2e-2 if ours.dtype.itemsize < 4 else 1e-6)


def all_of(namespace, names):
    return lambda *args: [getattr(namespace, name)(*args) for name in names]


@pytest.mark.table(default=1)
@pytest.mark.parametrize("left", OPERANDS)
def test_binary_functions(left):
    right_names = list(OPERANDS)[list(OPERANDS).index(left) :]
    for right in (OPERANDS[name] for name in right_names):
        is_complex = any(np.iscomplexobj(x) for x in (OPERANDS[left], right))
        # The order of complex numbers in `maximum` and `less` is not compared.
        names = [name for name in FUNCTIONS if not (is_complex and name in ("maximum", "less"))]
        if any(np.asarray(x).dtype != np.bool_ for x in (OPERANDS[left], right)):
            names += ["subtract"]
        ours = sw.jit(all_of(jnp, names))(OPERANDS[left], right)
        theirs = jax.jit(all_of(jax.numpy, names))(OPERANDS[left], right)
        for mine, other in zip(ours, theirs, strict=True):
            assert_same(mine, other)


def test_booleans_cannot_be_subtracted():
    for namespace in (jnp, jax.numpy):
        with pytest.raises(TypeError):
            namespace.subtract(True, np.array([True]))


@pytest.mark.table(default=1)
@pytest.mark.parametrize("operand", OPERANDS)
def test_unary_functions(operand):
    names = ["exp", "sum", "mean", "square"]
    ours, theirs = (
        wrap(all_of(namespace, names))(OPERANDS[operand]) for wrap, namespace in ((sw.jit, jnp), (jax.jit, jax.numpy))
    )
    for mine, other in zip(ours, theirs, strict=True):
        assert_same(mine, other)
