"""The installed pair of PyTorch and torchax, which `shardwise.torch` needs; neither is imported here."""

from collections.abc import Callable
from importlib import metadata

from shardwise.version import OLDEST_TORCH, TORCH_BOUNDS, TORCHAX_BOUNDS, UNSUPPORTED_TORCH

INSTALL = 'pip install "shardwise[torch]"'
PAIR = f"torch{TORCH_BOUNDS} and torchax{TORCHAX_BOUNDS}"


def installed_version(name: str) -> str | None:
    """Return the version of a distribution, or None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def torch_problem(version_of: Callable[[str], str | None] = installed_version) -> str | None:
    """Describe why `shardwise.torch` cannot be imported, or return None if a supported pair is installed.

    Args:
        version_of: returns the version of a distribution.
    """
    torch, torchax = version_of("torch"), version_of("torchax")
    if absent := [name for name, version in (("torch", torch), ("torchax", torchax)) if version is None]:
        return f"{' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} not installed"
    assert torch is not None and torchax is not None
    if not OLDEST_TORCH <= tuple(int(part) for part in torch.split(".")[:2]) < UNSUPPORTED_TORCH:
        return f"torch {torch} is not supported"
    if f"=={torchax}" != TORCHAX_BOUNDS:
        return f"torchax {torchax} is not supported"
    return None
