"""debug_key_reuse: a typed key that is used twice is an error; also legacy_prng_key and enable_custom_prng."""

import warnings

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax, random
from shardwise.errors import KeyReuseError


def draw_twice(key):
    return random.normal(key) + random.uniform(key)


def draw_from_both(key):
    first, second = random.split(key)
    return random.normal(first) + random.uniform(second)


def normal_at(*numbers):
    return lambda keys: [random.normal(keys[number]) for number in numbers]


def step(key, _):
    key, use = random.split(key)
    return key, random.normal(use)


def keys():
    return random.split(random.key(0), 3)


ON_A_KEY = {  # functions of a key, and whether they use a key twice
    "two draws": (draw_twice, True),
    "split": (draw_from_both, False),
    "split and draw": (lambda key: (random.split(key), random.normal(key)), True),
    "clone": (lambda key: (random.normal(key), random.normal(random.clone(key))), False),
    "fold_in": (lambda key: [random.normal(random.fold_in(key, number)) for number in range(3)], False),
    "jit called twice": (lambda key: (sw.jit(draw_from_both)(key), sw.jit(random.normal)(key)), True),
    "constant of scan": (lambda key: lax.scan(lambda c, _: (c + random.normal(key), None), 0.0, None, 3), True),
    "carry of scan": (lambda key: lax.scan(step, key, None, 3), False),
    "unchanged carry": (lambda key: lax.scan(lambda k, _: (k, random.normal(k)), key, None, 3), True),
    "while": (lambda key: lax.while_loop(lambda c: c < 3, lambda c: c + 9 + random.normal(key), 0.0), True),
    "fold_in in a loop": (
        lambda key: lax.fori_loop(0, 3, lambda i, c: c + random.normal(random.fold_in(key, i)), 0.0),
        False,
    ),
    "branches": (lambda key: lax.cond(True, random.normal, random.uniform, key), False),
    "a branch and after": (
        lambda key: (lax.cond(True, random.normal, lambda key: 0.0, key), random.normal(key)),
        True,
    ),
    "grad": (lambda key: sw.grad(lambda x: x * random.normal(key))(1.0), False),
    "grad of remat": (lambda key: sw.grad(sw.checkpoint(lambda x: jnp.sin(x * random.normal(key))))(1.0), False),
    "functions with several draws": (
        lambda key: (random.gamma(random.fold_in(key, 0), 1.5), random.permutation(random.fold_in(key, 1), 5)),
        False,
    ),
}
ON_KEYS = {
    "elements": (normal_at(0, 1, 2), False),
    "one element twice": (normal_at(0, 1, 0), True),
    "vmap": (sw.vmap(random.normal), False),
    "vmap and an element": (lambda keys: (sw.vmap(random.normal)(keys), random.normal(keys[1])), True),
    "scan": (lambda keys: lax.scan(lambda c, key: (c, random.normal(key)), 0, keys), False),
    "scan and an element": (
        lambda keys: (lax.scan(lambda c, key: (c, random.normal(key)), 0, keys), random.normal(keys[2])),
        True,
    ),
    "reversed": (lambda keys: (random.normal(keys[::-1][0]), random.normal(keys[0])), False),
    "a traced index": (lambda keys: sw.jit(lambda keys, i: random.normal(keys[i]))(keys, 1), False),
}
CASES = [
    *((name, function, lambda: random.key(0), reuses) for name, (function, reuses) in ON_A_KEY.items()),
    *((name, function, keys, reuses) for name, (function, reuses) in ON_KEYS.items()),
]


@pytest.mark.table(default=10)
@pytest.mark.parametrize("run", [lambda f: f, sw.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(("name", "function", "argument", "reuses"), CASES, ids=[case[0] for case in CASES])
def test_reuse_is_found(name, function, argument, reuses, run):
    with sw.debug_key_reuse(True):
        if reuses:
            with pytest.raises(KeyReuseError, match=r"a PRNG key is used at test_key_reuse.py:\d+, but it was used"):
                run(function)(argument())
        else:
            checked = run(function)(argument())
    if not reuses:
        expected = run(function)(argument())
        for mine, other in zip(sw.tree.leaves(checked), sw.tree.leaves(expected), strict=True):
            if jnp.issubdtype(mine.dtype, jnp.floating):
                np.testing.assert_array_equal(mine, other)  # the check changes no numbers


def test_the_message_names_both_lines():
    with sw.debug_key_reuse():
        key = random.key(3)
        random.normal(key)
        with pytest.raises(KeyReuseError) as raised:
            random.uniform(key)
    lines = [int(part.split(".py:")[1].split(",")[0].split(".")[0]) for part in str(raised.value).split(" at ")[1:3]]
    assert lines[0] == lines[1] + 2


def test_keys_are_not_checked_by_default_and_raw_keys_never():
    draw_twice(random.key(0))
    with sw.debug_key_reuse():
        draw_twice(random.PRNGKey(0))


def test_enable_custom_prng():
    raw = random.normal(random.PRNGKey(7))
    with sw.enable_custom_prng():
        key = random.PRNGKey(7)
        assert key.dtype == random.key(7).dtype
        assert random.normal(key) == raw
        assert sw.jit(lambda: random.PRNGKey(1))().shape == ()
    assert sw.jit(lambda: random.PRNGKey(1))().shape == (2,)


def test_legacy_prng_key():
    raw = random.PRNGKey(0)
    with (
        sw.legacy_prng_key("warn"),
        pytest.warns(UserWarning, match=r"normal: the key is a raw key, u32\[2\]") as caught,
    ):
        random.normal(raw)
    assert caught[0].filename == __file__
    with sw.legacy_prng_key("error"):
        with pytest.raises(ValueError, match="split: the key is a raw key"):
            random.split(raw)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            random.normal(random.key(0))
