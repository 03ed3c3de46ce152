"""Ops that create or rearrange elements at static positions."""
