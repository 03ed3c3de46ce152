"""Reductions, cumulative reductions and windowed reductions; broadcast, the transpose of sum."""
