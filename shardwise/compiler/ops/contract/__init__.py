"""Contractions: dot, convolution, fused attention."""
