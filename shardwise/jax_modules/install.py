"""as_jax: let `import jax` give Shardwise to every library of a process.

    import jax, jax.numpy       Shardwise's public modules; `jax` itself has the version of the installed jaxlib
    import jax._src.core        the modules of this folder, which have the private names that libraries use
    import jax.anything_else    ModuleNotFoundError, also where the real jax is installed: it is never imported

jaxlib's own code looks for `jax._src.sharding_impls` when it creates arrays, and works without it (`JaxBlocker`).
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, final

import shardwise
from shardwise.base._jaxlib import JaxBlocker
from shardwise.base.call_site import calling_package
from shardwise.jax_modules import version

# The submodules that JAX imports with `import jax`: libraries look for some of them in `sys.modules`.
_IMPORTED = (
    "core",
    "custom_batching",
    "custom_derivatives",
    "dtypes",
    "errors",
    "lax",
    "nn",
    "numpy",
    "random",
    "ref",
    "sharding",
    "tree",
    "tree_util",
)


def as_jax() -> ModuleType:
    """Let `import jax` mean Shardwise from now on, for every library that this process imports.

    Call it before anything imports jax. The real jax package may be installed or not; it is never imported. A second
    call does nothing. `python -m shardwise run script.py` calls it before it runs a script.

    Returns:
        The module that `import jax` gives. Its `__version__` is the release of JAX that belongs to the installed
        jaxlib, so that libraries which compare versions behave as they do with that JAX.

    Raises:
        RuntimeError: if the real jax is already imported.
    """
    imported = sys.modules.get("jax")
    if isinstance(imported, JaxModule):
        return imported
    if imported is not None:
        raise RuntimeError(
            f"as_jax: the real jax, {imported.__file__}, is already imported. "
            "Call `shardwise.as_jax()` before the first import of jax or of a library that imports it, or run the "
            "script with `python -m shardwise run`."
        )
    sys.meta_path.insert(sys.meta_path.index(JaxBlocker) + 1, _Finder())
    jax = import_module("jax")
    for name in _IMPORTED:
        import_module(f"jax.{name}")
    shardwise.config.update("callback_errors", "jax")  # libraries catch JaxRuntimeError
    return jax


@final
class JaxModule(ModuleType):
    """The module `jax`: the names of Shardwise, with the version of the installed jaxlib."""

    def __init__(self) -> None:
        super().__init__("jax", shardwise.__doc__)
        self.__path__: list[str] = []
        self.__file__ = shardwise.__file__
        self.__version_info__, self.__version__ = version.__version_info__, version.__version__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # attributes of the module itself
            raise AttributeError(f"module 'jax' has no attribute {name!r}", name=name)
        value = self._find(name)
        setattr(self, name, value)  # later accesses do not come here
        return value

    def _find(self, name: str) -> Any:
        if name not in dir(shardwise):
            try:
                return import_module(f"jax.{name}")  # some libraries expect that `import jax` imports its submodules
            except ModuleNotFoundError:
                pass
        return getattr(shardwise, name)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *dir(shardwise)})


@final
class _Finder(MetaPathFinder):
    """Finds `jax` and its submodules in Shardwise, and nowhere else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "jax" and not fullname.startswith("jax."):
            return None
        return ModuleSpec(fullname, _Loader(_find_module(fullname)), is_package=True)


def _find_module(name: str) -> ModuleType:
    """Return the module that `import name` gives. Raises ModuleNotFoundError if Shardwise has none."""
    if name == "jax":
        return JaxModule()
    path = name.removeprefix("jax.")
    is_public = path in dir(shardwise)
    homes = ("shardwise.jax_modules", "shardwise")
    for home in reversed(homes) if is_public else homes:
        try:
            return import_module(f"{home}.{path}")
        except ModuleNotFoundError as error:
            if not f"{home}.{path}".startswith(str(error.name)):
                raise
    raise ModuleNotFoundError(
        f"{name} is not a module that Shardwise provides{_asked_by()}. It has JAX's public modules, and the private "
        "names that the libraries in docs/ecosystem.md use.",
        name=name,
    )


def _asked_by() -> str:
    """Return which library asks for a name, for messages."""
    package = calling_package()
    return f", and {package} asks for it" if package else ""


@final
class _Loader(Loader):
    """Puts an existing module into `sys.modules` under a second name."""

    def __init__(self, module: ModuleType):
        self.module = module

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave the creation to the import system, which would change attributes of an existing module."""

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = self.module
