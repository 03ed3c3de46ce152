"""The names in the source of JAX: what each module defines or imports, and which names are public.

A release is a folder that holds the package `jax`: an unpacked wheel, or the folder of installed packages. Nothing is
imported, so that modules which cannot be imported here are read too.
"""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_TESTS = ("jax._src.internal_test_util", "jax._src.pallas.pallas_test_util")

# Bound in many of JAX's modules for themselves: versions of `map` and `zip` that check lengths, and loggers.
_INTERNAL_BINDINGS = {"logger", "map", "unsafe_map", "unsafe_zip", "zip"}


class Name(NamedTuple):
    """A name of a module."""

    module: str
    name: str


class Source(NamedTuple):
    """Where a module has a name from: what it imports or renames, if it does, and whether it exports the name."""

    imported: Name | None = None
    is_exported: bool = True


Sources = dict[str, Source]  # of the names of one module


def read_release(folder: Path) -> dict[str, Sources]:
    """Return the names of each module of a release. Modules of JAX's own tests are left out."""
    files = {_module(path.relative_to(folder)): path for path in (folder / "jax").rglob("*.py")}
    files = {module: path for module, path in files.items() if not module.startswith(_TESTS)}
    return {module: _names_of_module(path.read_text(), set(files)) for module, path in sorted(files.items())}


def _module(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def public_names(release: dict[str, Sources]) -> Iterator[Name]:
    """Yield the public names of a release, those of `jax.numpy` before those of modules below it.

    A name is public if neither it nor a part of its module's name has a leading underscore, and if the module defines
    it, exports an imported name by `import x as x` or a private one by `import x as y`, or still returns it as a
    deprecated name. Modules of JAX and jaxlib are no names.
    """
    for module in sorted(filter(is_public, release), key=lambda module: (module.count("."), module)):
        for name, source in release[module].items():
            if source.is_exported and not name.startswith("_"):
                yield Name(module, name)


def is_public(module: str) -> bool:
    """Return whether no part of a module's name has a leading underscore."""
    return not any(part.startswith("_") for part in module.split("."))


def _names_of_module(source: str, modules: set[str]) -> Sources:
    """Return the names that a module of JAX defines at its top level, or imports from other modules of JAX."""
    found = dict(_Reader(modules).names(ast.parse(source).body))
    return {name: source for name, source in found.items() if source and not name.startswith(("__", "*"))}


class _Reader:
    """Reads the statements of one module of JAX, whose modules are `modules`."""

    def __init__(self, modules: set[str]):
        self.modules = modules
        self.imported: dict[str, str] = {}  # modules of JAX, by the names that the module has for them

    def names(self, statements: Iterable[ast.stmt]) -> Iterator[tuple[str, Source | None]]:
        """Yield the names that statements bind, in their order; without a source, the names that they delete."""
        for node in statements:
            match node:
                case ast.FunctionDef() | ast.ClassDef():
                    yield node.name, Source()
                case ast.Assign(targets=[ast.Name("_deprecations")], value=ast.Dict(keys, values)):
                    entries = zip(keys, values, strict=True)
                    yield from ((key.value, Source()) for key, value in entries if _is_accessible(value))
                case ast.Assign(targets, value):
                    for part in (part for target in targets for part in ast.walk(target)):
                        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                            origin = self._origin(value) if part in targets else None
                            yield part.id, Source(origin, part.id not in _INTERNAL_BINDINGS)
                case ast.AnnAssign(target=ast.Name(name)) | ast.stmt(name=ast.Name(name)):
                    yield name, Source()  # the second case is `type name = ...`
                case ast.Delete(targets):
                    yield from ((target.id, None) for target in targets)
                case ast.Import([ast.alias(module, str() as name)]) if module.startswith("jaxlib."):
                    yield name, Source(Name(*module.rsplit(".", 1)), is_exported=False)
                case ast.ImportFrom(module, aliases, 0) if module.startswith(("jax.", "jaxlib")):
                    for alias in aliases:
                        name, path = alias.asname or alias.name, f"{module}.{alias.name}"
                        if path in self.modules:
                            self.imported[name] = path
                        else:
                            yield name, Source(Name(module, alias.name), _is_exported(module, alias))
                case ast.If(test, body, orelse):
                    yield from self.names(orelse if "TYPE_CHECKING" in ast.unparse(test) else body + orelse)
                case ast.Try(body, handlers, orelse):
                    # Names that handlers alone bind stand for imports that failed.
                    for name, source in self.names(inner for handler in handlers for inner in handler.body):
                        yield name, source and source._replace(is_exported=False)
                    yield from self.names(body + orelse)
                case ast.With(_, body):
                    yield from self.names(body)

    def _origin(self, value: ast.expr) -> Name | None:
        """Return the name that `module.name` is in an imported module of JAX; None for other values."""
        match value:
            case ast.Attribute(ast.Name(module), name) if module in self.imported:
                return Name(self.imported[module], name)
        return None


def _is_exported(module: str, alias: ast.alias) -> bool:
    """Return whether a module gives what it imports from `module` to its own users."""
    if alias.asname == alias.name:
        return True
    is_private = not is_public(f"{module}.{alias.name}") and not module.startswith("jax._src.lib")
    return is_private and alias.asname is not None


def _is_accessible(deprecation: ast.expr) -> bool:
    """Return whether a deprecated name still gives a value: its entry is a message and the value, or None."""
    return not (isinstance(deprecation, ast.Tuple) and isinstance(deprecation.elts[1], ast.Constant))
