"""Pipelines whose stages are separate programs on disjoint submeshes (MPMD)."""
