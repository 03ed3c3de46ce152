"""The notebook examples/pytorch.ipynb.

python -m tests.torch.notebook     runs its cells and writes what they print
"""

import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples/pytorch.ipynb"


def code_cells() -> list[dict[str, Any]]:
    """Return the code cells of the notebook, in order."""
    return [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]


def run(cells: list[dict[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Run cells in one namespace. Return it, and what each cell prints."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    for index, cell in enumerate(cells):
        stream = io.StringIO()
        with redirect_stdout(stream):
            exec(compile("".join(cell["source"]), f"cell {index + 1}", "exec"), namespace)
        printed.append(stream.getvalue())
    return namespace, printed


def write() -> None:
    """Run the notebook and store what its cells print."""
    notebook = json.loads(NOTEBOOK.read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    _, printed = run(cells)
    for index, (cell, text) in enumerate(zip(cells, printed, strict=True)):
        cell["execution_count"] = index + 1
        lines = text.splitlines(keepends=True)
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    write()
