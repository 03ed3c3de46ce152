"""Ops that hold programs: calls, loops, branches, manual regions, linear solves; callbacks."""
