"""Private modules of JAX that libraries import, or read as attributes of `jax._src`."""
