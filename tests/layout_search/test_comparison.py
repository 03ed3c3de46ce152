"""Ties, runners-up and the causes of a difference between alternatives."""

import pytest

from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.layout_search.comparison import changes_text, difference_text, runner_up, strategy_text, tied
from shardwise.layout_search.evaluate import Alternative, LayoutChange, Variant

ONE, TWO = AbstractMesh((8,), ("data",)), AbstractMesh((4, 2), ("data", "model"))


CHANGES = tuple(
    LayoutChange(name, (index,), Layout((("data",), ())), Layout(((), ("data",))))
    for index, name in enumerate(("`w['up']`", "`w['down']`", "`w['embed']`"))
)


def alternative(name="FSDP", mesh=ONE, seconds=1.0, fits=True, remat="none", changes=(), **parts):
    named = tuple((part.replace("_", " "), value) for part, value in parts.items())
    return Alternative(name, mesh, (), seconds, 0.0, 10**9, fits, Variant(remat), parts=named, changes=changes)


def test_ties_fit_and_are_slower_by_less_than_the_error():
    others = [alternative(seconds=1.04), alternative(seconds=1.06), alternative(seconds=1.01, fits=False)]
    assert tied(alternative(), others, 0.05) == (others[0],)


@pytest.mark.parametrize(
    ("others", "index"),
    [
        ([alternative(changes=CHANGES), alternative("ZeRO 1")], 1),
        ([alternative(seconds=0.9, fits=False), alternative(remat="all")], 1),
        ([alternative(mesh=TWO)], 0),
        ([alternative(changes=CHANGES)], None),
    ],
)
def test_a_runner_up_fits_and_has_another_mesh_family_or_recomputation(others, index):
    assert runner_up([alternative(), *others]) is (None if index is None else others[index])


def test_the_difference_names_the_largest_causes():
    best = alternative(products=0.8, memory_traffic=0.2)
    other = alternative(
        "tensor parallel", TWO, 1.5, remat="all", products=0.65, memory_traffic=0.21, exposed_all_reduce=0.64
    )
    assert strategy_text(other) == "data=4 × model=2, tensor parallel, bodies of scans recomputed"
    assert difference_text(best, other, "h100", 0.1) == (
        "data=4 × model=2, tensor parallel, bodies of scans recomputed: 50% slower: 640.0 ms more exposed all reduce, "
        "although 150.0 ms less products"
    )
    assert "50% slower (a tie: predictions for h100 have an error of 60%):" in difference_text(best, other, "h100", 0.6)
    large = alternative(mesh=TWO, seconds=0.5, fits=False)
    assert difference_text(best, large, "h100", 0.1) == "data=4 × model=2, FSDP: 500.0 ms, does not fit: 1.0 GB"


def test_a_refined_strategy_says_of_what_and_what_differs():
    one = alternative(changes=CHANGES[:1])
    assert strategy_text(one) == "data=8, refined FSDP (`w['up']` P(None, 'data') instead of P('data'))"
    assert changes_text(alternative(changes=CHANGES)).endswith(
        "`w['down']` P(None, 'data') instead of P('data'), 1 more"
    )
    assert changes_text(alternative()) == ""


def test_an_estimate_that_ranks_behind_a_plan_may_be_faster():
    text = difference_text(alternative(), alternative(mesh=TWO, seconds=0.98), "h100", 0.1)
    assert text.startswith("data=4 × model=2, FSDP: estimated as 2% faster (a tie")
