"""Elementwise special functions."""
