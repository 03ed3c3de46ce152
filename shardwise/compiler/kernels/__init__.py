"""Kernels of our own: ops that are one Triton kernel on NVIDIA GPUs, and a program of other ops elsewhere."""
