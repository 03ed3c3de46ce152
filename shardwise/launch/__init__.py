"""The command line: `run`, `launch` and `doctor`."""
