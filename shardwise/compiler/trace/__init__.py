"""From a function to a Program: one tracer class, a stack of frames, the user's source lines."""
