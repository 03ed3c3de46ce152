"""Fields of JSON objects: values of wrong types are errors that name the field."""

import pytest

from shardwise.checkpoints.fields import Fields
from shardwise.errors import CorruptCheckpoint

VALUE = {"name": "w", "none": None, "flag": True, "size": 3, "sizes": [0, 2], "texts": {"a": "b"}}


def test_fields_have_their_types():
    fields = Fields(VALUE, "manifest")
    assert (fields.text("name"), fields.optional_text("none"), fields.flag("flag")) == ("w", None, True)
    assert (fields.size("size"), fields.sizes("sizes"), fields.texts("texts")) == (3, [0, 2], {"a": "b"})
    assert "size" in fields and "other" not in fields


@pytest.mark.parametrize(
    ("value", "read", "problem"),
    [
        ({}, "text", "manifest has no 'x'"),
        ({"x": 1}, "text", "manifest: x 1 is not a string"),
        ({"x": 1}, "flag", "manifest: x 1 is neither true nor false"),
        ({"x": -1}, "size", "manifest: x -1 is not a size"),
        ({"x": True}, "size", "manifest: x True is not a size"),
        ({"x": 1 << 62}, "size", "is not a size"),
        ({"x": [1, "2"]}, "sizes", "is not a size"),
        ({"x": []}, "mapping", "is not an object"),
        ({"x": {"a": 1}}, "texts", "has a value that is not a string"),
    ],
)
def test_other_types_are_errors(value, read, problem):
    with pytest.raises(CorruptCheckpoint, match=problem):
        getattr(Fields(value, "manifest"), read)("x")


def test_a_huge_value_is_not_printed():
    with pytest.raises(CorruptCheckpoint) as caught:
        Fields(["x" * 10**6] * 10, "manifest")
    assert len(str(caught.value)) < 150
