"""Specs of parameters, and the errors for those that do not fit."""

import pytest

from shardwise import P
from shardwise.errors import StrategyError
from shardwise.strategies.specs import check_axis, checked_sharding, dims_of, spec_of_dims


@pytest.mark.parametrize("spec", [P(), P("data"), P(None, ("data", "model")), P("model", None, "data")])
def test_a_spec_is_rebuilt_from_its_dims(spec):
    assert spec_of_dims(dims_of(spec, 4)) == spec


def test_dims_without_an_entry_are_not_sharded():
    assert dims_of(P(None, ("data", "model")), 3) == [(), ("data", "model"), ()]


def test_specs_that_do_not_fit_are_errors(mesh):
    assert check_axis(mesh, "data", "fsdp") == 4
    with pytest.raises(StrategyError, match="fsdp: the mesh has no axis 'date'; it has 'data', 'model'"):
        check_axis(mesh, "date", "fsdp")
    with pytest.raises(StrategyError, match=r"fsdp: the spec of 'w' is \('data',\): write PartitionSpec\('data'\)"):
        checked_sharding(mesh, "w", (8,), ("data",), "fsdp")
    with pytest.raises(StrategyError, match=r"has 2 dims, but 'w' has the shape \(8,\)"):
        checked_sharding(mesh, "w", (8,), P("data", "model"), "fsdp")
    with pytest.raises(StrategyError, match="has size 6, which 4 devices along 'data' do not divide"):
        checked_sharding(mesh, "w", (6,), P("data"), "fsdp")
    assert checked_sharding(mesh, "w", (6,), P("data"), "fsdp", allow_uneven=True).spec == P("data")
