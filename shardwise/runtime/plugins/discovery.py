"""Discovery of the plugins that are installed, in the places where JAX looks for them.

    PJRT_NAMES_AND_LIBRARY_PATHS    names and paths of libraries: `mine:/opt/mine.so,other:/opt/other.so`
    jax_plugins.*                   modules of the namespace package `jax_plugins`
    entry points                    modules in the group `jax_plugins` of installed distributions
    libtpu                          the package with the library of TPUs, or `TPU_LIBRARY_PATH`

A module registers its plugin by its function `initialize`, which calls `register_plugin` of jax. The libraries of CUDA
and ROCm are in the folders of their modules, so they are loaded without running the modules.
"""

import json
import os
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from shardwise.base.call_site import warn_user
from shardwise.base.lazy import lazy_module
from shardwise.runtime.plugins.gpu_vendor import GPU_PRIORITY, VENDORS
from shardwise.runtime.plugins.plugin import Plugin

_metadata = lazy_module("importlib.metadata")  # 50 ms: the parser of email

VARIABLE = "PJRT_NAMES_AND_LIBRARY_PATHS"
NAMESPACE = "jax_plugins"  # also the group of entry points
TPU_PRIORITY = 300  # as in JAX
_GOOGLE = "0x1ae0"  # the PCI vendor of TPUs


def plugins_of_variable() -> Iterator[Plugin]:
    """Yield the plugins that the environment variable lists. A path may be that of a JSON file with options."""
    for entry in filter(None, os.environ.get(VARIABLE, "").split(",")):
        name, _, path = entry.partition(os.pathsep)
        if not (name and path):
            warn_user(f"{VARIABLE} has the entry {entry!r}, which is not of the form name{os.pathsep}path: ignored")
            continue
        try:
            library, options = _read_options(path) if path.endswith(".json") else (path, {})
        except (OSError, ValueError) as error:
            warn_user(f"{VARIABLE}: the options of {name!r} cannot be read from {path}: {error}; it is ignored")
            continue
        yield Plugin(name, VARIABLE, library, options)


def _read_options(path: str) -> tuple[str, dict[str, Any]]:
    """Return the library and the options in a JSON file: `{"library_path": "...", "create_options": {}}`."""
    fields = json.loads(Path(path).read_text())
    if not isinstance(fields, dict) or not isinstance(fields.get("library_path"), str):
        raise ValueError('the field "library_path" is missing')
    options = fields.get("create_options") or {}
    if not isinstance(options, dict):
        raise ValueError('the field "create_options" must be an object')
    return fields["library_path"], options


def plugin_modules() -> dict[str, str]:
    """Return the modules of plugins, each with the place where it was found, in alphabetical order."""
    modules = {}
    if (package := find_spec(NAMESPACE)) is not None and package.submodule_search_locations is not None:
        folders = list(package.submodule_search_locations)
        modules = {f"{NAMESPACE}.{module.name}": f"the package {NAMESPACE}" for module in iter_modules(folders)}
    if any(map(_has_entry_point, sys.path)):
        for entry in _metadata.entry_points(group=NAMESPACE):
            origin = f"the entry point {entry.name!r} of {entry.dist.name if entry.dist else 'a package'}"
            modules.setdefault(entry.module, origin)
    return dict(sorted(modules.items()))


def _has_entry_point(folder: str) -> bool:
    """Return whether a distribution in a folder of `sys.path` may have an entry point of a plugin.

    `importlib.metadata` takes ten times as long to answer, and most environments have no plugin.
    """
    path = Path(folder)
    if not path.is_dir():
        return path.is_file()  # a zip file
    for info in path.glob("*.*-info"):
        entry_points = info / "entry_points.txt"
        if entry_points.is_file() and f"[{NAMESPACE}]" in entry_points.read_text(errors="replace"):
            return True
    return False


def gpu_plugin(module: str, origin: str) -> Plugin | None:
    """Return the GPU plugin whose library is beside a module; None if there is none."""
    for folder in _folders(module):
        for vendor in VENDORS:
            library = folder / vendor.library
            if library.is_file():
                return Plugin(vendor.name, origin, str(library), priority=GPU_PRIORITY)
    return None


def _folders(module: str) -> list[Path]:
    """Return the folders of a package, without running its code, which may import jax."""
    locations: list[str] | None = None  # `sys.path`
    for depth in range(module.count(".") + 1):
        name = ".".join(module.split(".")[: depth + 1])
        spec = PathFinder.find_spec(name, locations)
        if spec is None or spec.submodule_search_locations is None:
            return []
        locations = list(spec.submodule_search_locations)
    return [Path(location) for location in locations or ()]


def tpu_plugin() -> Plugin | None:
    """Return the plugin of TPUs; None if its library is not installed. It is a default on machines with TPUs only."""
    library, origin = os.environ.get("TPU_LIBRARY_PATH", ""), "TPU_LIBRARY_PATH"
    if not library:
        libraries = [folder / "libtpu.so" for folder in _folders("libtpu")]
        library, origin = next((str(path) for path in libraries if path.is_file()), ""), "the package libtpu"
    if not library:
        return None
    return Plugin("tpu", origin, library, priority=TPU_PRIORITY if _has_tpu() else 0)


def _has_tpu() -> bool:
    """Return whether this machine has a TPU: the library waits for one, and minutes may pass."""
    vendors = Path("/sys/bus/pci/devices").glob("*/vendor")
    return any(vendor.read_text().strip() == _GOOGLE for vendor in vendors)
