"""Pictures of meshes, shardings and specs in notebooks."""

import re

import pytest

import shardwise as sw
from shardwise import NamedSharding, P
from shardwise.sharding import AbstractMesh, AxisType, Mesh


def caption(page):
    return re.search("<small>(.*)</small>", page)[1]


def device_titles(page):
    return re.findall("<title>devices? (.*?)</title>", page)


def test_a_mesh_shows_the_ids_of_its_devices_and_the_types_of_its_axes(mesh):
    page = mesh._repr_html_()
    assert device_titles(page) == [str(device) for device in range(8)]
    assert caption(page) == "8 cpu devices: data=4 Auto, model=2 Auto"
    reversed_mesh = Mesh(sw.devices()[::-1], "x")
    assert device_titles(reversed_mesh._repr_html_()) == [str(device) for device in reversed(range(8))]


def test_an_abstract_mesh_shows_positions():
    page = AbstractMesh((2,), ("x",), AxisType.Explicit)._repr_html_()
    assert device_titles(page) == ["0", "1"] and caption(page) == "2 devices: x=2 Explicit"


def test_a_mesh_without_axes_is_shown_as_text():
    assert AbstractMesh((), ())._repr_html_() is None and sw.sharding.get_mesh()._repr_html_() is None


@pytest.mark.parametrize(
    ("spec", "devices", "notes"),
    [
        (P("data", None), ["0,1", "2,3", "4,5", "6,7"], "<br>replicated over &#x27;model&#x27;"),
        (P("model", "data"), ["0", "2", "4", "6", "1", "3", "5", "7"], ""),
        (P(), ["0–7"], "<br>replicated over &#x27;data&#x27; and &#x27;model&#x27;"),
    ],
)
def test_a_sharding_shows_the_devices_of_every_shard(mesh, spec, devices, notes):
    page = NamedSharding(mesh, spec)._repr_html_()
    assert device_titles(page) == devices
    assert caption(page).partition(")<br>")[2] == notes.removeprefix("<br>")


def test_further_sharded_dims_are_listed():
    mesh = AbstractMesh((2, 2, 2), ("x", "y", "z"))
    page = NamedSharding(mesh, P("x", "y", "z"))._repr_html_()
    assert device_titles(page) == ["0,1", "2,3", "4,5", "6,7"]
    assert "also sharded, but not drawn: dim 2" in caption(page)


def test_unreduced_axes_are_described(explicit_mesh):
    page = NamedSharding(explicit_mesh, P("X", unreduced={"Y"}))._repr_html_()
    assert "unreduced over &#x27;Y&#x27;: each device holds a term of the sum" in caption(page)
    assert "replicated" not in page


def test_a_spec_shows_the_axes_of_every_dim():
    page = P("data", None, ("model", "expert"), P.UNCONSTRAINED)._repr_html_()
    assert [">data<" in page, ">–<" in page, ">model × expert<" in page, ">?<" in page] == [True] * 4
    assert caption(P()._repr_html_()) == "P()<br>not sharded along any dim"


def test_names_are_escaped():
    name = "<script>alert(1)</script>"
    mesh = AbstractMesh((2,), (name,))
    for thing in (mesh, NamedSharding(mesh, P(name)), P(name)):
        page = thing._repr_html_()
        assert "<script" not in page and "&lt;script" in page


def test_pictures_of_large_meshes_are_small():
    mesh = AbstractMesh((64, 32), ("data", "model"))
    for thing in (mesh, NamedSharding(mesh, P("data", "model")), NamedSharding(mesh, P(("data", "model")))):
        assert len(thing._repr_html_()) < 10_000
