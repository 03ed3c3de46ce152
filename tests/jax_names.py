"""The names of JAX's modules, private ones too, in shardwise/jax_modules/jax_names.txt.

    python -m tests.jax_names FOLDER ...     writes the file

Each folder holds the unpacked wheel of one release of JAX and has its version as name. The Python must be one that the
newest of these releases supports; nothing needs to be installed. Names are read from JAX's source. Those of its own
tests are left out, and so are the modules that a module imports.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

PATH = Path(__file__).resolve().parents[1] / "shardwise/jax_modules/jax_names.txt"
HEAD = """\
# A line has a module of JAX and its names, those that it imports from JAX and jaxlib too. In a private module,
# `name=jax.core` is public in `jax.core`, and `name=jax.core:other` is public there as `other`. A module or name that
# is not in all of JAX {all} is followed by the releases that have it: `name@{last}` is in JAX 0.{last} alone.
# `python -m tests.jax_names` writes this file.
"""
TESTS = ("jax._src.internal_test_util", "jax._src.pallas.pallas_test_util")


class Name(NamedTuple):
    """A name of a module."""

    module: str
    name: str


class Source(NamedTuple):
    """Where a module has a name from: what it imports, if it does, and whether it exports that, by `import x as x`."""

    imported: Name | None = None
    is_exported: bool = True


Sources = dict[str, Source]  # of the names of one module


def names_of_module(source: str, modules: set[str]) -> Sources:
    """Return the names that a module of JAX defines at its top level, or imports from other modules of JAX."""
    found = dict(_names(ast.parse(source).body, modules))
    return {name: source for name, source in found.items() if source and not name.startswith(("__", "*"))}


def _names(statements: Iterable[ast.stmt], modules: set[str]) -> Iterator[tuple[str, Source | None]]:
    for node in statements:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                yield node.name, Source()
            case ast.Assign(targets=[ast.Name("_deprecations")], value=ast.Dict(keys, values)):
                yield from (
                    (key.value, Source()) for key, value in zip(keys, values, strict=True) if _is_accessible(value)
                )
            case ast.Assign(targets):
                nodes = (part for target in targets for part in ast.walk(target))
                yield from (
                    (part.id, Source())
                    for part in nodes
                    if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
                )
            case (
                ast.AnnAssign(target=ast.Name(name)) | ast.stmt(name=ast.Name(name))
            ):  # the second is `type name = ...`
                yield name, Source()
            case ast.Delete(targets):
                yield from ((target.id, None) for target in targets)
            case ast.Import([ast.alias(module, str() as name)]) if module.startswith("jaxlib."):
                yield name, Source(Name(*module.rsplit(".", 1)))
            case ast.ImportFrom(module, aliases, 0) if module.startswith(("jax.", "jaxlib")):
                for alias in aliases:
                    if f"{module}.{alias.name}" not in modules:
                        yield alias.asname or alias.name, Source(Name(module, alias.name), alias.asname is not None)
            case ast.If(test, body, orelse):
                yield from _names(orelse if "TYPE_CHECKING" in ast.unparse(test) else body + orelse, modules)
            case ast.Try(body, handlers, orelse):
                yield from _names([*body, *orelse, *(inner for handler in handlers for inner in handler.body)], modules)
            case ast.With(_, body):
                yield from _names(body, modules)


def _is_accessible(deprecation: ast.expr) -> bool:
    """Return whether a deprecated name still gives a value: its entry is a message and the value, or None."""
    return not (isinstance(deprecation, ast.Tuple) and isinstance(deprecation.elts[1], ast.Constant))


def entries_of_release(folder: Path) -> dict[str, list[str]]:
    """Return the entries of each module, as the file has them, in the unpacked wheel of a release."""
    files = {_module(path.relative_to(folder)): path for path in (folder / "jax").rglob("*.py")}
    files = {module: path for module, path in files.items() if not module.startswith(TESTS)}
    sources = {module: names_of_module(path.read_text(), set(files)) for module, path in sorted(files.items())}
    public: dict[Name, Name] = {}
    for module in sorted(
        sources, key=lambda module: (module.count("."), module)
    ):  # `jax.numpy` before what is below it
        for name, source in sources[module].items() if _is_public(module) else ():
            if source.is_exported and not name.startswith("_"):
                public.setdefault(_origin(Name(module, name), sources), Name(module, name))

    def entry(module: str, name: str) -> str:
        origin = _origin(Name(module, name), sources)
        home = origin if origin.module.startswith("jaxlib") else public.get(origin)
        if home is None or _is_public(module):
            return name
        return f"{name}={home.module}" if home.name == name else f"{name}={home.module}:{home.name}"

    return {module: [entry(module, name) for name in names] for module, names in sources.items()}


def _module(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _is_public(module: str) -> bool:
    return not any(part.startswith("_") for part in module.split("."))


def _origin(name: Name, sources: dict[str, Sources]) -> Name:
    """Return the name of the module that defines what a module imports."""
    imported = sources.get(name.module, {}).get(name.name, Source()).imported
    return name if imported is None else _origin(imported, sources)


def text(releases: dict[int, dict[str, list[str]]]) -> str:
    """Return the text of the file, from the entries of JAX 0.10, 0.11 and so on, by their second number."""
    of: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for release, modules in releases.items():
        for module, entries in modules.items():
            for entry in (module, *entries):
                of[module][entry].append(release)

    def suffixed(entry: str, having: list[int]) -> str:
        return entry if len(having) == len(releases) else f"{entry}@{','.join(map(str, having))}"

    lines = [
        " ".join(suffixed(*item) for item in sorted(entries.items(), key=lambda item: (item[0] != module, item[0])))
        for module, entries in sorted(of.items())
    ]
    head = HEAD.format(all=", ".join(f"0.{release}" for release in releases), last=max(releases))
    return head + "\n".join(lines) + "\n"


if __name__ == "__main__":
    folders = map(Path, sys.argv[1:])
    PATH.write_text(text({int(folder.name.split(".")[1]): entries_of_release(folder) for folder in folders}))
