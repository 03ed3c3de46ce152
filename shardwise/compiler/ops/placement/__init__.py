"""Ops that pin or inspect a sharding or a memory kind and compute nothing."""
