"""The version of Shardwise, and the versions of Python, jaxlib, PyTorch and torchax that it supports."""

__version__ = "0.1.0.dev0"

OLDEST_JAXLIB = (0, 10, 2)
# For each supported minor version of Python, the newest supported jaxlib. jaxlib 0.11 has no wheels for Python 3.11.
NEWEST_JAXLIB = {(3, 11): (0, 10, 2), (3, 12): (0, 12), (3, 13): (0, 12)}
# The first minor version that is not supported: jaxlib's Python API changes between minor versions.
UNSUPPORTED_JAXLIB = (0, max(NEWEST_JAXLIB.values())[1] + 1)
JAXLIB_BOUNDS = f">={'.'.join(map(str, OLDEST_JAXLIB))},<{'.'.join(map(str, UNSUPPORTED_JAXLIB))}"

# `shardwise.torch` needs a pair: torchax 0.0.13 registers functions for overloads that torch 2.13 removed, and the
# tests run with torch 2.11 and 2.12.
OLDEST_TORCH, UNSUPPORTED_TORCH = (2, 11), (2, 13)
TORCH_BOUNDS = f">={'.'.join(map(str, OLDEST_TORCH))},<{'.'.join(map(str, UNSUPPORTED_TORCH))}"
TORCHAX_BOUNDS = "==0.0.13"
