"""Tracing: from a Python function to a Program. One tracer class, a stack of frames, the user's source lines."""
