"""Jaxprs, primitives and interpreters, as JAX's libraries use them."""
