"""Transformations of functions: derivatives, batching, and rematerialization."""
