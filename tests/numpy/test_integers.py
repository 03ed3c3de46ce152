"""gcd, lcm, bit counts and packed bits, against numpy and JAX."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.agreement import (
    PARTS,
    Case,
    mesh_like_one_device,
    values_like_both,
    vmap_like_loop,
)

RNG = np.random.default_rng(0)
SMALL = np.array([0, 1, -12, 18, 127, -128, 7], np.int8)
WIDE = np.array(
    [0, 832040, -514229, 2**31 - 1, 12, 18, 1836311903], np.int32
)  # the last one and 1134903170 are consecutive Fibonacci numbers, the worst case of Euclid's algorithm
OTHER = np.array([0, 514229, 832040, 6, -18, 0, 1134903170], np.int32)
BITS = RNG.integers(0, 2, (3, 19)).astype(np.int32)
BYTES = RNG.integers(0, 256, (3, 5)).astype(np.uint8)
CASES = [
    Case("gcd", (WIDE, OTHER)),
    Case("gcd", (WIDE[:, None], np.array([12, 35], np.int32))),
    Case("gcd", (SMALL[:5], np.int8(18) * np.ones((), np.int8))),
    Case("gcd", (np.array([2**32 - 1, 0], np.uint32), np.array([65535, 9], np.uint32))),
    Case("lcm", (SMALL[:5], np.array([0, 5, 6, 4, 1], np.int8))),
    Case("lcm", (np.array([12, -7, 0], np.int32), np.array([18, 3, 0], np.int32))),
    Case("bitwise_count", (SMALL,)),
    Case("bitwise_count", (WIDE,)),
    Case("bitwise_left_shift", (WIDE[:3], np.array([1, 2, 3], np.int32))),
    Case("bitwise_right_shift", (SMALL, np.array([1], np.int8))),
    *(
        Case("packbits", (BITS,), {"axis": axis, "bitorder": how})
        for axis in (None, 0, -1)
        for how in ("big", "little")
    ),
    Case("packbits", (np.zeros((2, 0), bool), -1)),
    *(
        Case("unpackbits", (BYTES,), {"axis": axis, "bitorder": how, "count": count})
        for axis, count in ((None, None), (0, 20), (-1, 33), (1, -3), (1, 44))
        for how in ("big", "little")
    ),
]
LIKE_JAX = [
    Case("gcd", (12, 18)),
    Case("lcm", (WIDE[4:6], 4)),
    Case("bitwise_count", (True,)),
    Case("gcd", (SMALL[:5], 3)),
]


@pytest.mark.table(default=1)
@PARTS
def test_like_numpy_and_jax(part):
    values_like_both(jnp, CASES[part], LIKE_JAX[part])


@pytest.mark.table(default=1)
@PARTS
def test_vmap_like_loop(part):
    vmap_like_loop(jnp, CASES[part])


@pytest.mark.table(default=1)
@pytest.mark.parametrize("which", ["first", "last"])
@PARTS
def test_sharded_like_one_device(mesh, which, part):
    arrays = [RNG.integers(-500, 500, shape).astype(np.int32) for shape in ((16, 8), (13, 7))]
    cases = [Case(name, (x, x[::-1].copy())) for name in ("gcd", "lcm") for x in arrays]
    cases += [Case("packbits", (x,), {"axis": axis}) for x in arrays for axis in (None, 0, 1)]
    cases += [Case("unpackbits", (x.astype(np.uint8),), {"axis": axis}) for x in arrays for axis in (None, 0, 1)]
    mesh_like_one_device(mesh, jnp, cases[part], which)


def test_sharded_integer_functions_need_no_communication(mesh):
    x = sw.device_put(np.ones((16, 8), np.int32), NamedSharding(mesh, P("data", "model")))
    assert sw.explain(lambda x: (jnp.gcd(x, 12), jnp.lcm(x, 12), jnp.bitwise_count(x)))(x).counts() == {}
    assert (
        sw.explain(lambda x: jnp.packbits(x, 0))(sw.device_put(x, NamedSharding(mesh, P(None, "data")))).counts() == {}
    )


def test_gcd_of_the_least_integer():
    """JAX's gcd does not terminate for it."""
    least = np.array([-(2**31), -(2**31), -(2**31)], np.int32)
    others = np.array([6, -1, 2**30], np.int32)
    np.testing.assert_array_equal(jnp.gcd(least, others), np.gcd(least, others))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: jnp.gcd(1.0, 2), ValueError, r"gcd: operands must be integers, not f32\[\]~"),
        (lambda: jnp.lcm(True, False), ValueError, r"lcm: operands must be integers, not bool\[\] and bool\[\]"),
        (lambda: jnp.bitwise_count(1.0), TypeError, "bitwise_count: x must hold integers or booleans"),
        (
            lambda: jnp.packbits(np.ones(3, np.float32)),
            TypeError,
            r"packbits: a must hold integers or booleans, not f32\[3\]",
        ),
        (
            lambda: jnp.packbits(BITS, bitorder="middle"),
            ValueError,
            "packbits: bitorder must be 'big' or 'little', not 'middle'",
        ),
        (lambda: jnp.unpackbits(BITS), TypeError, r"unpackbits: a must have the dtype uint8, not i32\[3,19\]"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()
