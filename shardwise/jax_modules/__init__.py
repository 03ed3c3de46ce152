"""Modules of JAX below its public API that libraries import, such as `jax.interpreters` and `jax._src`.

`as_jax` serves them, so that libraries written for JAX run unmodified. The path of a module here is its path in JAX.
Each name has a comment with the libraries that need it. Other names are absent, and asking for one is an error that
names the library.
"""
