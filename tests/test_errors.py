"""Exceptions that travel between processes are equal after pickling, and link to their section of the documentation."""

import inspect
import pickle
import re
import tomllib
import traceback
from pathlib import Path

import pytest

from shardwise import errors
from shardwise.errors import (
    AutoshardError,
    CheckpointMismatch,
    DataStateMismatch,
    EndOfDataError,
    JaxRuntimeError,
    KernelError,
    PeerFailure,
    PlatformError,
    ShardingError,
    UnboundAxisError,
)
from tests.anchors import anchors

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()
EXAMPLES = {
    AutoshardError: AutoshardError("no plan fits", "the smallest plan"),
    CheckpointMismatch: CheckpointMismatch("a leaf is missing", ("w",)),
    DataStateMismatch: DataStateMismatch("the seeds differ", ("seed",)),
    EndOfDataError: EndOfDataError(3, 5),
    PlatformError: PlatformError("no such platform", "abacus"),
    KernelError: KernelError("softmax", "its Triton IR is not valid", "model.py:7"),
    PeerFailure: PeerFailure(1, 7, "it was killed", "by signal 9"),
    UnboundAxisError: UnboundAxisError("unbound axis name 'x'", "x"),
}
CLASSES = [getattr(errors, name) for name in errors.__all__]
OWN_CLASSES = [cls for cls in CLASSES if cls is not JaxRuntimeError]  # that one is jaxlib's


@pytest.mark.parametrize("cls", OWN_CLASSES, ids=lambda cls: cls.__name__)
def test_pickling_keeps_the_message_and_the_attributes(cls):
    error = EXAMPLES.get(cls) or cls("it failed")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


@pytest.mark.parametrize("cls", OWN_CLASSES, ids=lambda cls: cls.__name__)
def test_every_class_links_to_a_section_of_the_documentation(cls):
    page, _, anchor = cls.link.partition("#")
    documentation = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Documentation"]
    assert page == documentation.replace("index.md", "troubleshooting.md")
    assert anchor in anchors(PAGE)
    assert f"See {cls.link}" in inspect.getdoc(cls).splitlines()
    assert (EXAMPLES.get(cls) or cls("it failed")).__notes__ == [f"See {cls.link}"]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_the_documentation_names_every_class(cls):
    assert re.search(rf"\b{cls.__name__}\b", PAGE)


def test_the_link_is_below_the_message_and_no_part_of_it():
    error = ShardingError("the mesh has no axis 'x'")
    assert str(error) == "the mesh has no axis 'x'"
    assert traceback.format_exception_only(error) == [
        "shardwise.errors.ShardingError: the mesh has no axis 'x'\n",
        f"See {ShardingError.link}\n",
    ]


def test_a_class_of_the_user_has_the_link_of_its_base():
    class MyError(ShardingError):
        """Mine."""

    assert MyError("it failed").__notes__ == [f"See {ShardingError.link}"] and MyError.__doc__ == "Mine."
