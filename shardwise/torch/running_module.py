"""The submodule that is running: its path names scopes of the program, and says where an error is."""

import inspect
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb
from types import FrameType, TracebackType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils import checkpoint

from shardwise.base.call_site import cite_file, format_line, is_user_file
from shardwise.compiler.trace.provenance import provenance, use_scope

_APPLY = torch.autograd.Function.apply.__func__.__code__
_TORCH = os.path.dirname(torch.__file__) + os.sep


class RunningModules(threading.local):
    """The submodules of the calls that are in progress in a thread, outermost first."""

    def __init__(self) -> None:
        self.stack: list[torch.nn.Module] = []


_running = RunningModules()


@contextmanager
def track_modules(paths: dict[int, str]) -> Iterator[list[torch.nn.Module]]:
    """Name a scope after each submodule while it runs.

    Args:
        paths: the path of each submodule, by its `id`.

    Yields:
        The submodules that are running, outermost first. After an exception, those in which it was raised.
    """
    outside, before = provenance.scope, _running.stack
    stack: list[torch.nn.Module] = []
    _running.stack = stack

    def set_scope() -> None:
        path = paths.get(id(stack[-1]), "") if stack else ""
        provenance.scope = (*outside, path) if path else outside

    def enter(module: torch.nn.Module, inputs: object) -> None:
        if _running.stack is stack:  # hooks are global: another thread may run modules of its own
            stack.append(module)
            set_scope()

    def leave(module: torch.nn.Module, inputs: object, outputs: object) -> None:
        if _running.stack is stack:
            while stack.pop() is not module:  # a module above caught the exception of one that did not leave
                pass
            set_scope()

    handles = register_module_forward_pre_hook(enter), register_module_forward_hook(leave)
    try:
        with use_scope(outside):
            yield stack
    finally:
        _running.stack = before
        for handle in handles:
            handle.remove()


def cite_model_files(module: torch.nn.Module) -> None:
    """Cite lines of the files that define a model, though they are in an installed library such as transformers.

    Those are the files of the classes with submodules, except PyTorch's own. A layer without submodules, such as a
    normalization, is cited where the model calls it.
    """
    for submodule in module.modules():
        if next(submodule.children(), None) is None:
            continue
        try:
            file = inspect.getfile(type(submodule))
        except (OSError, TypeError):  # a class of a notebook or of generated code
            continue
        if not file.startswith(_TORCH):
            cite_file(file)


def describe_place(stack: list[torch.nn.Module], paths: dict[int, str], traceback: TracebackType | None) -> str:
    """Return the path and class of the innermost running submodule, and the innermost line of the model."""
    frames = [frame for frame, _ in walk_tb(traceback)]
    lines = [line for _, line in walk_tb(traceback)]
    cited = [(f, line) for f, line in zip(frames, lines, strict=True) if is_user_file(f.f_code.co_filename)]
    line = f", {format_line(cited[-1][0].f_code.co_filename, cited[-1][1])}" if cited else ""
    if not stack:
        return f"the call of the module{line}"
    path = paths.get(id(stack[-1])) or "the module itself"
    return f"`{path}` ({type(stack[-1]).__name__}{line})"


def running_autograd_function() -> str | None:
    """Return the name of the `torch.autograd.Function` whose forward pass is running in this thread, or None."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _APPLY:
            return str(frame.f_locals["cls"].__name__)
        frame = frame.f_back
    return None


def is_inside_checkpoint(traceback: TracebackType | None) -> bool:
    """Return whether an exception was raised inside `torch.utils.checkpoint`."""
    return any(frame.f_code.co_filename == checkpoint.__file__ for frame, _ in walk_tb(traceback))


def module_paths(module: torch.nn.Module) -> dict[int, str]:
    """Return the first path of each submodule, by its `id`."""
    return {id(submodule): path for path, submodule in module.named_modules()}


def training_modes(module: torch.nn.Module) -> list[tuple[Any, bool]]:
    """Return each submodule and whether it is in training mode."""
    return [(submodule, submodule.training) for submodule in module.modules()]
