"""Names of cells, and outputs below them."""

import sys
from types import SimpleNamespace

from shardwise.base import notebook


def test_nothing_runs_ipython_here(monkeypatch):
    assert notebook.ipython_shell() is None and notebook.running_cell() is None and notebook.cell_name("f.py") is None
    # A program that has imported IPython, but does not run in it.
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert notebook.ipython_shell() is None and notebook.running_cell() is None and notebook.cell_name("f.py") is None


def test_cells_have_the_names_of_ipython(ipython):
    assert notebook.cell_name("/tmp/ipykernel_1/3.py") == "Cell In[3]"
    assert notebook.cell_name("train.py") is None
    assert notebook.running_cell() == 3


def test_files_of_an_ipython_without_names_of_cells_have_none(ipython):
    del ipython.compile.format_code_name
    assert notebook.cell_name("/tmp/ipykernel_1/3.py") is None


def test_only_the_shell_of_a_kernel_is_a_notebook(ipython):
    assert not notebook.is_notebook()
    ipython.kernel = object()
    assert notebook.is_notebook()


def test_an_output_has_all_representations(ipython):
    notebook.display({"text/plain": "a plan", "text/html": "<p>a plan</p>"})
    assert ipython.outputs == [{"text/plain": "a plan", "text/html": "<p>a plan</p>"}]
