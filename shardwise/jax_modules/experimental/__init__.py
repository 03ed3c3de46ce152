"""Modules of jax.experimental that libraries import and `shardwise.experimental` does not have."""
