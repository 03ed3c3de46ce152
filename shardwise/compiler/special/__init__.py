"""Elementwise special functions; several are computed by programs of other ops."""
