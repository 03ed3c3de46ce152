"""Private modules of JAX that libraries import."""
