"""jax.experimental.key_reuse: the check that no PRNG key is used twice. It has no names of its own, as in JAX.

The setting `debug_key_reuse` enables the check, for all calls or in a `with` block. A second use of a key then raises
`errors.KeyReuseError`, which names the lines of both uses:

    with jax.debug_key_reuse(True):
        key = jax.random.key(0)
        jax.random.normal(key)
        jax.random.normal(key)  # KeyReuseError
"""

from shardwise.base.lazy import publish

publish(__name__)
