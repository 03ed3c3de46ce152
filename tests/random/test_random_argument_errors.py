"""Wrong arguments of samplers and of functions of keys: the typed error and its text."""

import numpy as np
import pytest

from shardwise import random

KEY = random.key(0)
V, X = np.ones(3, np.float32), np.ones((2, 3), np.float32)
CASES = [
    (
        lambda: random.categorical(KEY, V, shape=(4,), replace=False),
        ValueError,
        "categorical: cannot sample 4 of 3 categories without replacement",
    ),
    (lambda: random.permutation(KEY, 1.5), TypeError, "permutation: x must be an integer, or an array of at least one"),
    (lambda: random.choice(KEY, 3, shape=3), TypeError, "choice: shape must be a tuple, not 3"),
    (lambda: random.choice(KEY, 0), ValueError, "choice: a must have at least one element, not 0"),
    (
        lambda: random.multivariate_normal(KEY, np.float32(0), np.eye(1)),
        ValueError,
        r"multivariate_normal: mean must have at least one dim, not f32\[\]",
    ),
    (
        lambda: random.multivariate_normal(KEY, V, np.eye(2)),
        ValueError,
        r"multivariate_normal: cov must end with the dims \(3, 3\), the size of mean",
    ),
    (
        lambda: random.multivariate_normal(KEY, V, np.eye(3), dtype=np.int32),
        ValueError,
        "multivariate_normal: dtype must be a floating-point dtype, not int32",
    ),
    (lambda: random.bernoulli(KEY, 1), TypeError, "bernoulli: the probability p must have a floating-point dtype"),
    (lambda: random.key(0, impl="rbg", dtype=KEY.dtype), ValueError, "key: pass either impl or dtype, not both"),
    (
        lambda: random.wrap_key_data(np.zeros(2, np.uint32), impl="rbg", dtype=KEY.dtype),
        ValueError,
        "wrap_key_data: pass either impl or dtype, not both",
    ),
    (lambda: random.fold_in(KEY, np.arange(3)), TypeError, r"fold_in: data must be a scalar, not .*\[3\]; use vmap"),
    (lambda: random.normal(KEY, dtype=np.int32), ValueError, "normal: dtype must be a floating-point or complex dtype"),
    (lambda: random.poisson(KEY, 1.0, dtype=np.float32), ValueError, "poisson: dtype must be an integer dtype"),
    (
        lambda: random.multinomial(KEY, 3, np.float32(1)),
        ValueError,
        "multinomial: p must have at least one dim, that of the outcomes",
    ),
    (
        lambda: random.dirichlet(KEY, np.float32(1)),
        ValueError,
        "dirichlet: alpha must have at least one dim, that of the categories",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), CASES, ids=[text.replace("\\", "")[:40] for _, _, text in CASES])
def test_wrong_arguments_raise(call, error, text):
    with pytest.raises(error, match=f"^{text}"):
        call()
