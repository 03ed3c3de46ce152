"""as_jax: let `import jax` give Shardwise to every library of a process.

    import jax, jax.numpy       Shardwise's public modules; `jax` itself has the version of the installed jaxlib
    import jax._src.core        the modules of this folder, which have the private names that libraries use
    import jax._src.pjit        other modules that JAX has, whose names are placeholders: using one is an error
    import jax.anything_else    ModuleNotFoundError, also where the real jax is installed: it is never imported

A name that a module of JAX has and Shardwise's lacks is the public name for the same thing, if there is one, and a
placeholder otherwise. All other names raise ImportError or AttributeError, so that libraries choose the fallback that
they have for the release of JAX.

`initialize_plugin` does the same for the module of a PJRT plugin, while it registers its library.

jaxlib's own code looks for `jax._src.sharding_impls` when it creates arrays, and works without it: it finds neither the
module (`JaxBlocker`) nor, if a library has imported that, names in it.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn, final

import shardwise
from shardwise.base._jaxlib import JaxBlocker, hide_jax, is_jaxlib_asking
from shardwise.base.call_site import calling_package, missing_name_error
from shardwise.base.unsupported import placeholder
from shardwise.jax_modules import version
from shardwise.jax_modules.jax_names import PublicName, jax_names

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

_ADVICE = "Shardwise has JAX's public names, and the private ones that the libraries in docs/ecosystem.md use."


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
    _install_finder()
    jax = import_module("jax")
    for name in _IMPORTED:
        import_module(f"jax.{name}")
    shardwise.config.update("callback_errors", "jax")  # libraries catch JaxRuntimeError
    return jax


def _install_finder() -> "_Finder":
    """Let `import jax` find Shardwise, before any other finder but the one for jaxlib."""
    finder = _Finder()
    sys.meta_path.insert(sys.meta_path.index(JaxBlocker) + 1, finder)
    return finder


def initialize_plugin(module: str) -> None:
    """Import the module of a PJRT plugin, which is written for jax, and call its function `initialize`.

    `import jax` means Shardwise meanwhile. After `as_jax()`, it does anyway. Otherwise, neither `jax` nor the module is
    in `sys.modules` afterwards: a later `import jax` finds the real one, which imports the module again. Other threads
    that import jax meanwhile get Shardwise.

    Raises:
        RuntimeError: if the real jax is imported, with which the module would register its plugin.
        Exception: any exception of the module.
    """
    with _temporary_jax(module):
        import_module(module).initialize()


@contextmanager
def _temporary_jax(module: str) -> Iterator[None]:
    """Let `import jax` mean Shardwise inside a `with` block, and forget `jax` and a module that is imported there."""
    imported = sys.modules.get("jax")
    if isinstance(imported, JaxModule):
        yield
        return
    if imported is not None:
        raise RuntimeError(
            f"it is written for jax, and the real jax, {imported.__file__}, is imported in this process. Call "
            "`shardwise.as_jax()` at the start of the program"
        )
    before = set(sys.modules)
    finder = _install_finder()
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in set(sys.modules) - before:
            if name in ("jax", module) or name.startswith(("jax.", f"{module}.")):
                del sys.modules[name]
        hide_jax()


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
        value = _attribute_or_placeholder("jax", self._find, name)
        setattr(self, name, value)  # later accesses do not come here
        return value

    def _find(self, name: str) -> Any:
        """Return a public name of Shardwise, or a module: `jax.version` is not `shardwise.version`."""
        if name not in dir(shardwise):
            with suppress(ModuleNotFoundError):
                return import_module(f"jax.{name}")  # some libraries expect that `import jax` imports its submodules
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
            return _with_placeholders(import_module(f"{home}.{path}"), name)
        except ModuleNotFoundError as error:
            if not f"{home}.{path}".startswith(str(error.name)):
                raise
    if name in jax_names():
        return _with_placeholders(_placeholder_module(name), name)
    package = calling_package()
    asks = f", and {package} asks for it" if package else ""
    raise ModuleNotFoundError(
        f"{name} is not a module of JAX {version.__version__}, which Shardwise follows{asks}.", name=name
    )


def _placeholder_module(name: str) -> ModuleType:
    """Return a module that stands for one that JAX has and Shardwise lacks."""
    module = ModuleType(name, f"A module of JAX that Shardwise lacks. Using one of its names is an error. {_ADVICE}")
    module.__path__ = []
    vars(module)["__all__"] = sorted(public for public in jax_names()[name] if not public.startswith("_"))
    return module


def _with_placeholders(module: ModuleType, name: str) -> ModuleType:
    """Return a module, which now has placeholders for the names of JAX's module `name` that it lacked.

    So do its submodules that are imported already: `from jax._src import core` reads an attribute.
    """
    find = vars(module).get("__getattr__", partial(_raise_missing, name))
    if isinstance(find, partial) and find.func is _attribute_or_placeholder:  # it has them already
        return module
    vars(module)["__getattr__"] = partial(_attribute_or_placeholder, name, find)
    for attribute, value in list(vars(module).items()):
        if isinstance(value, ModuleType) and value.__name__ == f"{module.__name__}.{attribute}":
            _with_placeholders(value, f"{name}.{attribute}")
    return module


def _raise_missing(module: str, name: str) -> NoReturn:
    raise missing_name_error(
        f"{module} has no attribute {name!r} in JAX {version.__version__}, which Shardwise follows.", name
    )


def _attribute_or_placeholder(module: str, find: Callable[[str], Any], name: str) -> Any:
    """Return what `find` finds, otherwise the submodule, the public name for the same thing, or a placeholder.

    Raises the error of `find` if JAX's module lacks the name.
    """
    try:
        return find(name)
    except (AttributeError, ImportError):
        names = jax_names().get(module, {})
        if f"{module}.{name}" in jax_names():
            return import_module(f"{module}.{name}")
        if name not in names or is_jaxlib_asking():
            raise
    public = names[name]
    value = None if public is None else _find_public(public)
    return placeholder(module, name, _ADVICE) if value is None else value


def _find_public(public: PublicName) -> Any:
    """Return the value of a public name, which may be a submodule; None if Shardwise lacks it."""
    with suppress(ImportError):
        home = import_module(public.module)
        with suppress(AttributeError):
            return getattr(home, public.name)
        return import_module(f"{public.module}.{public.name}")
    return None


@final
class _Loader(Loader):
    """Puts an existing module into `sys.modules` under a second name."""

    def __init__(self, module: ModuleType):
        self.module = module

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave the creation to the import system, which would change attributes of an existing module."""

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = self.module
