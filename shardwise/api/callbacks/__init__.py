"""Calls of host functions from running programs, for results and for debugging."""
