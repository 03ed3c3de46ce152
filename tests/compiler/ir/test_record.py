"""Records behave as frozen dataclasses, with and without fields, before and after the first instance."""

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, dataclass, fields, is_dataclass, replace

import pytest

from shardwise.compiler.ir.record import record


def records():
    """Return two records without fields, one of which inherits from the other, and a subclass with a field."""

    @record
    class Plain:
        kind = "plain"

    @record
    class Other(Plain):
        """Has no field either."""

    @record
    class Sized(Other):
        size: int
        name: str = "?"

    return Plain, Other, Sized


def test_instances_without_fields_are_equal():
    plain, other, _ = records()
    assert plain() == plain() and hash(plain()) == hash(plain())
    assert plain() != other() and other() != plain()
    assert repr(other()).endswith("Other()")
    assert replace(other()) == other() and fields(other()) == ()
    assert is_dataclass(plain) and plain.__match_args__ == ()


def test_records_without_fields_accept_no_arguments_and_no_attributes():
    plain, other, _ = records()
    for cls in (plain, other):
        with pytest.raises(TypeError):
            cls(1)
        with pytest.raises(FrozenInstanceError, match="'size'"):
            cls().size = 3
        with pytest.raises(FrozenInstanceError, match="'kind'"):
            del cls().kind


def test_a_record_with_fields_is_a_frozen_dataclass():
    *_, sized = records()
    made = sized(3)
    assert (made.size, made.name, made.kind) == (3, "?", "plain")
    assert made == sized(3) and made != sized(4) and hash(made) == hash(sized(3))
    assert [field.name for field in fields(made)] == ["size", "name"]
    assert replace(made, size=5) == sized(5)
    with pytest.raises(FrozenInstanceError):
        made.size = 4


def test_a_subclass_may_be_instantiated_before_its_base():
    plain, other, sized = records()
    assert sized(1).size == 1
    assert other() == other() and plain() == plain() and plain() != other()


def test_methods_of_the_class_are_not_replaced():
    @record
    class Spoken:
        def __repr__(self):
            return "spoken"

    assert repr(Spoken()) == "spoken" and Spoken() == Spoken()


def test_it_is_a_dataclass_before_the_first_instance():
    *_, sized = records()

    @dataclass(frozen=True)
    class Same:
        size: int
        name: str = "?"

    assert is_dataclass(sized)
    assert [field.name for field in fields(sized)] == [field.name for field in fields(Same)]
    assert sized(3) == sized(3) and sized(3).name == "?"


def test_fields_of_a_subclass_are_readable_before_those_of_its_bases():
    @record
    class Base:
        size: int

    @record
    class Derived(Base):
        name: str

    assert [field.name for field in fields(Derived)] == ["size", "name"]
    assert [field.name for field in fields(Base)] == ["size"]
    assert Derived(1, "a") == Derived(1, "a") and Derived(1, "a") != Derived(1, "b")


def test_many_threads_may_create_the_first_instance():
    *_, sized = records()
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(sized, [7] * 64)) == {sized(7)}


def test_threads_may_create_the_first_instances_at_the_same_time():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(100):

            @record
            class Base:
                x: int
                y: int = 2

            @record
            class Derived(Base):
                z: int = 3

            def fields(_, derived=Derived):
                made = derived(1, z=5)
                return made.x, made.y, made.z

            with ThreadPoolExecutor(4) as pool:
                assert list(pool.map(fields, range(4))) == [(1, 2, 5)] * 4
    finally:
        sys.setswitchinterval(interval)
