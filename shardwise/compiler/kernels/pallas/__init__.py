"""Kernels of Pallas as ops; see README.md for the files."""
