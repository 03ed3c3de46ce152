"""Ops on batches of matrices, and the discrete Fourier transform."""
