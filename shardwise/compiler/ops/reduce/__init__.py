"""Reductions, cumulative reductions and windowed reductions; and broadcast, the transpose of sum."""
