"""jax.tools: command-line tools of JAX. The module `jax_to_ir` exists for imports."""
