"""IPython, if this process runs it: names of cells, and rich outputs.

Comes in: the file name of a code object, or the representations of an object. Goes out: `Cell In[3]`, or an output of
the running cell. IPython is not imported here: a process that runs it has imported it already.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any, final


def ipython_shell() -> Any | None:
    """Return the running IPython shell, in a terminal or in a notebook's kernel; None outside of IPython."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return None if get_ipython is None else get_ipython()


def is_notebook() -> bool:
    """Return whether the running IPython shell belongs to the kernel of a notebook."""
    return getattr(ipython_shell(), "kernel", None) is not None


def cell_name(file: str) -> str | None:
    """Return the name by which IPython's tracebacks cite a cell, such as `Cell In[3]`.

    Args:
        file: the file name of a code object. A cell is compiled under the name of a temporary file.

    Returns:
        The name; None if the file is not a cell. A cell that ran several times has the number of its last run.
    """
    compiler = getattr(ipython_shell(), "compile", None)
    format_code_name = getattr(compiler, "format_code_name", lambda file: None)  # from IPython 8 on
    label = format_code_name(file)
    return None if label is None else " ".join(label)


def running_cell() -> int | None:
    """Return the number of the running cell, as in `In[3]`; None outside of IPython."""
    shell = ipython_shell()
    return None if shell is None else int(shell.execution_count)


def display(representations: Mapping[str, str]) -> None:
    """Show an output below the running cell: the representation of those, by MIME type, that the frontend prefers."""
    shell = ipython_shell()
    assert shell is not None
    shell.display_pub.publish(dict(representations))


@final
class OutputLine:
    """A line of text below the running cell that can be replaced and removed, from any thread."""

    def __init__(self) -> None:
        self._shell = ipython_shell()
        self._id = os.urandom(16).hex()  # other kernels may have shown outputs in the same notebook
        self._is_shown = False

    def show(self, text: str) -> None:
        """Show the line, in place of the text before."""
        assert self._shell is not None
        output = {"text/plain": text}
        self._shell.display_pub.publish(output, transient={"display_id": self._id}, update=self._is_shown)
        self._is_shown = True

    def remove(self) -> None:
        """Replace the line by an empty output. A notebook cannot delete one output of a cell."""
        self.show("")
