"""Write the API reference: one page per public module, from the docstrings and signatures of its public names.

Docstrings are markdown with Google's sections: Args, Attributes, Returns, Yields, Raises, Example.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import shardwise
from shardwise import ad_checkpoint

_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Example):$", re.MULTILINE)
_ENTRY = re.compile(r"^(\*{0,2}\w[\w.]*(?:, \*{0,2}\w+)*): ", re.MULTILINE)
_PROBABILITY = "shardwise.scipy.stats."


def public_modules() -> dict[str, ModuleType]:
    """Return the public modules by their names: those in `__all__` of the package, and theirs."""
    modules = {"shardwise": shardwise, "shardwise.ad_checkpoint": ad_checkpoint}

    def add(module: ModuleType) -> None:
        for name in module.__all__:
            member = getattr(module, name)
            if isinstance(member, ModuleType) and member.__name__ not in modules:
                modules[member.__name__] = member
                if hasattr(member, "__all__"):
                    add(member)

    add(shardwise)
    return dict(sorted(modules.items()))


def write_pages(folder: Path) -> None:
    """Write `index.md` and one page per public module to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    modules = public_modules()
    for name, module in modules.items():
        (folder / f"{name}.md").write_text(module_page(name, module))
    rows = "\n".join(f"| [{name}]({name}.md) | {_summary(module)} |" for name, module in modules.items())
    listing = "\n".join(modules)
    (folder / "index.md").write_text(
        "# API reference\n\nThe public modules. `import shardwise as jax` reads as JAX's API does; the pages say what "
        f"each function expects, returns and raises.\n\n| module | |\n|---|---|\n{rows}\n\n"
        f"```{{toctree}}\n:hidden:\n:maxdepth: 1\n\n{listing}\n```\n"
    )


def module_page(name: str, module: ModuleType) -> str:
    """Return the page of a module."""
    members = {each: getattr(module, each) for each in module.__all__ if not each.startswith("__")}
    parts = [f"# {name}", inspect.cleandoc(module.__doc__ or "")]
    if inner := [each.__name__ for each in members.values() if isinstance(each, ModuleType)]:
        parts.append("Modules: " + ", ".join(f"[{each}]({each}.md)" for each in inner))
    for title, kind in (("Functions", "function"), ("Classes", "class"), ("Errors", "exception"), ("Values", "data")):
        if selected := {each: value for each, value in members.items() if _kind(value) == kind}:
            parts.append(f"## {title}")
            parts += (_entry(kind, name, each, value) for each, value in sorted(selected.items()))
    return "\n\n".join(part for part in parts if part) + "\n"


def _kind(value: Any) -> str:
    if isinstance(value, ModuleType):
        return "module"
    if isinstance(value, type):
        return "exception" if issubclass(value, BaseException) else "class"
    return "function" if callable(value) else "data"


def _entry(kind: str, module: str, name: str, value: Any) -> str:
    """Return the directive that describes a public name."""
    match kind:
        case "function":
            return _directive("py:function", f"{name}{_signature(value)}", module, _body(value))
        case "class":
            return _directive("py:class", f"{name}{_signature(value)}", module, _body(value), *_members(value))
        case "exception":
            return _directive("py:exception", name, module, _body(value))
        case _:
            return _directive("py:data", name, module, f"`{_simple(value)}`")


def _members(cls: type) -> Iterator[str]:
    """Yield the directives of a class's own public methods and properties that have docstrings."""
    if issubclass(cls, Enum):
        yield from (_directive("py:attribute", member.name, None, "") for member in cls)
        return
    for name, member in sorted(vars(cls).items()):
        if name.startswith("_") or not getattr(member, "__doc__", None):
            continue
        if isinstance(member, property):
            yield _directive("py:property", name, None, _body(member))
        elif isinstance(member, (staticmethod, classmethod)) or inspect.isfunction(member):
            yield _directive("py:method", f"{name}{_signature(getattr(cls, name), bound=True)}", None, _body(member))


def _directive(kind: str, head: str, module: str | None, *body: str) -> str:
    text = "\n\n".join(part for part in body if part)
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`{3,}", text)), default=2))
    options = f":module: {module}\n" if module else ""
    return f"{fence}{{{kind}}} {head}\n{options}\n{text}\n{fence}"


def _signature(function: Callable[..., Any], bound: bool = False) -> str:
    """Return the parameters with simple defaults and without annotations; "" if they are unknown."""
    if isinstance(function, type) and issubclass(function, Enum):
        return ""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ""
    parameters = list(signature.parameters.values())
    if bound and parameters and parameters[0].name == "self":
        parameters = parameters[1:]
    plain = [
        each.replace(
            annotation=inspect.Parameter.empty,
            default=each.default if each.default is inspect.Parameter.empty else _Text(_simple(each.default)),
        )
        for each in parameters
    ]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


class _Text:
    """A default value in a signature, with its text."""

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _simple(value: Any) -> str:
    """Return the text of a simple value, else "...": the text of others may be no Python and contain addresses."""
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)
    if isinstance(value, (tuple, list)) and all(_simple(each) != "..." for each in value):
        return repr(value)
    return getattr(value, "__name__", "...") if isinstance(value, type) else "..."


def _summary(module: ModuleType) -> str:
    return inspect.cleandoc(module.__doc__ or "").partition("\n")[0].replace("|", "\\|")


def _body(value: Any) -> str:
    """Return a docstring as markdown."""
    text = inspect.cleandoc(getattr(value, "__doc__", None) or "")
    head, *rest = _SECTION.split(text)
    parts = [head.strip()]
    for title, section in zip(rest[::2], rest[1::2], strict=True):
        lines = inspect.cleandoc(section.strip("\n"))
        match title:
            case "Example":
                parts.append(f"**Example**\n\n```pycon\n{lines.rstrip()}\n```")
            case "Returns" | "Yields":
                parts.append(f"**{title}**: {lines}")
            case _:
                parts.append(f"**{title}**\n\n{_list(lines)}")
    return "\n\n".join(part for part in parts if part)


def _list(text: str) -> str:
    """Return the entries `name: text` of a section as a list. Continuation lines are indented."""
    return _ENTRY.sub(lambda entry: f"- `{entry[1]}`: ", text)
