"""The notebook examples/pytorch.ipynb runs, its loss falls, and transformers loads what it saves."""

import shutil

import pytest

from tests.torch.notebook import NOTEBOOK, code_cells, run

pytestmark = pytest.mark.filterwarnings("default")


def test_the_notebook_trains_a_model_of_transformers(tmp_path, monkeypatch):
    shutil.copy(NOTEBOOK.parent / "text.txt", tmp_path)
    monkeypatch.chdir(tmp_path)
    namespace, printed = run(code_cells())
    losses = namespace["losses"]
    assert losses[0] > 4 and max(losses[-5:]) < 2.4
    assert (tmp_path / "llama-trained/model.safetensors").exists()
    text = "".join(printed)
    assert "all_reduce     model" in text and "modeling_llama.py" in text and "│         CPU 7" in text
    assert "same as the module: True" in text
