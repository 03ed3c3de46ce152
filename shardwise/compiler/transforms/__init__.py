"""Transformations, Program → Program: jvp, linearize, transpose, vmap, remat, inline, dce, hoist and others."""
