"""Targets of `shardwise explain` and `shardwise simulate`: functions, and the values of their variables.

A target is `FILE.py:FUNCTION` or `package.module:FUNCTION`; the same module has a function that returns the arguments.
"""

import ast
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, final

from shardwise import tree_util
from shardwise.explain.simulate import on_mesh
from shardwise.explain.sweep import MESH, call_arguments, parameters_of
from shardwise.sharding import AbstractMesh, NamedSharding

_AXIS = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*([1-9]\d{0,8})\s*", re.ASCII)


class CommandError(ValueError):
    """An argument of the command line is invalid."""


@final
@dataclass(frozen=True)
class Target:
    """A function to plan.

    Attributes:
        function: the function.
        arguments: the function that returns its arguments, or the arguments.
    """

    function: Callable[..., Any]
    arguments: Callable[..., Any] | tuple[Any, ...]

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the variables that the arguments depend on."""
        return parameters_of(self.arguments)

    def check(self, variables: Sequence[str]) -> None:
        """Raise an error if a variable is not a parameter of the arguments, or if a parameter is not set."""
        known = f"Its parameters: {', '.join(self.parameters) or 'none'}."
        for name in variables:
            if name not in self.parameters and name != MESH:
                raise CommandError(
                    f"--set {name}: the function that returns the arguments has no such parameter. {known}"
                )
        if callable(self.arguments):
            needed = inspect.signature(self.arguments).parameters.values()
            for parameter in needed:
                if parameter.default is parameter.empty and parameter.name not in variables:
                    option = "--mesh data=8" if parameter.name == MESH else f"--set {parameter.name}=VALUE"
                    raise CommandError(f"the arguments depend on {parameter.name!r}: write {option}")

    def call_arguments(self, choice: dict[str, Any]) -> tuple[Any, ...]:
        """Return the arguments for one value of each variable, on the mesh if there is one."""
        args = call_arguments(self.arguments, choice)
        if MESH not in choice or MESH in self.parameters:
            return args
        if not any(isinstance(getattr(x, "sharding", None), NamedSharding) for x in tree_util.tree_leaves(args)):
            raise CommandError(
                "--mesh: no argument has a NamedSharding, so the mesh has no effect. Write a parameter `mesh` of the "
                "function that returns the arguments, and use NamedSharding(mesh, P(...)) there."
            )
        moved: tuple[Any, ...] = on_mesh(args, choice[MESH])
        return moved


def is_script(target: str) -> bool:
    """Return whether a target is a script instead of a function."""
    return target.endswith(".py")


def load_target(target: str, arguments: str) -> Target:
    """Import a module, and return the function of the target.

    Args:
        target: `FILE.py:FUNCTION` or `package.module:FUNCTION`. A PyTorch module, a class of modules, or a
            function that is annotated to return one, is a target too: its training step is planned.
        arguments: the name of the function that returns the arguments. It may be missing if FUNCTION needs none.

    Raises:
        CommandError: if there is no such file, module or function.
    """
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise CommandError(f"{target!r} must be FILE.py:FUNCTION, package.module:FUNCTION, or a script FILE.py")
    module = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    function = _attribute(module, name, place)
    if hasattr(module, arguments):
        given = _attribute(module, arguments, place, may_be_tuple=True)
        if _makes_module(function):
            return Target(*_torch_step(function, given))
        if "torch" in sys.modules and not inspect.signature(function).parameters:
            raise CommandError(
                f"{name!r} of {place} has no parameters, and {arguments!r} returns some. If it makes a PyTorch module, "
                f"say so: `def {name}() -> torch.nn.Module`"
            )
        return Target(function, given)
    if _makes_module(function) or _needs_arguments(function):
        raise CommandError(
            f"{place} has no function {arguments!r}, which returns the arguments of {name!r}: a tuple of arrays or "
            f"ShapeDtypeStructs. Write one, or name it: --arguments NAME. {_names(module, arguments)}"
        )
    return Target(function, ())


def _makes_module(function: Callable[..., Any]) -> bool:
    """Return whether a function is a PyTorch module, a class of modules, or annotated to return one."""
    torch = sys.modules.get("torch")  # which the file has imported if it has a module
    if torch is None:
        return False
    if isinstance(function, torch.nn.Module):
        return True
    returned = function if isinstance(function, type) else inspect.signature(function, eval_str=True).return_annotation
    return isinstance(returned, type) and issubclass(returned, torch.nn.Module)


def _torch_step(make_module: Callable[..., Any], inputs: Any) -> tuple[Callable[..., Any], Any]:
    """Return the training step of a PyTorch module, and the function that returns its arguments."""
    module_step = importlib.import_module("shardwise.torch.module_step").module_step
    step: tuple[Callable[..., Any], Any] = module_step(make_module, inputs)
    return step


def parse_mesh_text(text: str) -> AbstractMesh:
    """Parse a mesh such as `data=8,model=4`.

    Raises:
        CommandError: if `text` is not a list of axes with their sizes.
    """
    axes: dict[str, int] = {}
    for part in text.split(","):
        match = _AXIS.fullmatch(part)
        if match is None:
            raise CommandError(
                f"--mesh {text[:100]!r}: {part[:50]!r} is not an axis with its size, from 1 to 999999999. "
                "Write: data=8,model=4"
            )
        if match[1] in axes:
            raise CommandError(f"--mesh {text!r} has the axis {match[1]!r} twice")
        axes[match[1]] = int(match[2])
    return AbstractMesh(tuple(axes.values()), tuple(axes))


def parse_variables(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Parse variables such as `batch=256`. Return the values by name; a value is a Python literal, else a string."""
    variables: dict[str, list[Any]] = {}
    for text in texts:
        name, is_set, value = text.partition("=")
        if not is_set or not name.isidentifier():
            raise CommandError(f"--set {text!r}: write NAME=VALUE, such as batch=256")
        try:
            variables.setdefault(name, []).append(ast.literal_eval(value))
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two for deeply nested brackets
            variables.setdefault(name, []).append(value)
    return variables


def check_file(path: Path) -> None:
    """Raise an error if a Python file does not exist."""
    if not path.is_file():
        near = get_close_matches(path.name, [file.name for file in path.parent.glob("*.py")], 1)
        hint = f". Did you mean {str(path.with_name(near[0]))!r}?" if near else ""
        raise CommandError(f"there is no file {str(path)!r}{hint}")


def _import_file(path: Path) -> ModuleType:
    check_file(path)
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _import_module(name: str) -> ModuleType:
    sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise  # an import inside the module failed
        hint = f" Write {name}.py:FUNCTION for a file." if Path(f"{name}.py").is_file() else ""
        raise CommandError(f"there is no module {name!r}.{hint}") from error


def _attribute(module: ModuleType, name: str, place: str, *, may_be_tuple: bool = False) -> Any:
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            raise CommandError(f"{place} has no function {name!r}. {_names(module, name)}")
        value = getattr(value, part)
    if not callable(value) and not (may_be_tuple and isinstance(value, tuple)):
        raise CommandError(f"{name!r} in {place} must be a function, not {type(value).__name__}")
    return value


def _names(module: ModuleType, name: str) -> str:
    functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    own = [key for key in functions if getattr(vars(module)[key], "__module__", None) == module.__name__]
    if near := get_close_matches(name, functions, 1):
        return f"Did you mean {near[0]!r}?"
    return f"Its functions: {', '.join(own) or 'none'}."


def _needs_arguments(function: Callable[..., Any]) -> bool:
    empty = inspect.Parameter.empty
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return any(parameter.default is empty and parameter.kind not in variadic for parameter in parameters)
