"""Ops that hold programs (calls, loops, branches, manual regions), their boundaries, and effects."""
