"""jax.cloud_tpu_init: empty, as in JAX, where it is deprecated. Platforms are initialized when they are first used."""

from shardwise.base.lazy import publish

publish(__name__)
