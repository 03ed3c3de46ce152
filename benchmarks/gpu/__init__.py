"""Correctness checks on a GPU: a sample of all ops and of the runtime, compared with numpy or the CPU."""
