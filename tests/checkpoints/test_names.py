"""Names of leaves: escaped keys, and trees that are rebuilt from names."""

from hypothesis import given
from hypothesis import strategies as st

from shardwise import tree_util
from shardwise.checkpoints.names import join_keys, leaf_name, nested, position_keys, split_name
from shardwise.checkpoints.snapshot import named_leaves

texts = st.text(st.sampled_from("~/01ab "), max_size=6)
entries = st.one_of(
    st.builds(tree_util.DictKey, texts | st.integers()),
    st.builds(tree_util.SequenceKey, st.integers(0, 20)),
    st.builds(tree_util.GetAttrKey, texts),
    st.builds(tree_util.FlattenedIndexKey, st.integers(0, 20)),
    texts,  # a type may register keys of its own
)
trees = st.recursive(
    st.integers(),
    lambda children: (
        st.dictionaries(texts, children, min_size=1, max_size=4) | st.lists(children, min_size=1, max_size=4)
    ),
)


@given(st.lists(texts, min_size=1))
def test_keys_are_the_keys_of_their_name(keys):
    name = join_keys(keys)
    assert split_name(name) == keys and name.count("/") == len(keys) - 1


@given(st.lists(texts, min_size=1), st.lists(texts, min_size=1))
def test_different_keys_have_different_names(first, second):
    assert (join_keys(first) == join_keys(second)) == (first == second)


@given(st.lists(entries, min_size=1))
def test_a_name_has_the_key_of_every_entry_of_the_path(path):
    assert split_name(leaf_name(tuple(path))) == [str(entry_key(entry)) for entry in path]


def entry_key(entry):
    for attribute in ("key", "idx", "name"):
        if hasattr(entry, attribute):
            return getattr(entry, attribute)
    return entry


@given(trees)
def test_a_tree_of_dicts_and_lists_is_rebuilt_from_its_names(tree):
    named = {name: (list(positions), leaf) for name, (positions, leaf) in named_leaves(tree).items()}
    assert nested(named) == tree


def test_positions_are_those_of_sequences():
    leaves, _ = tree_util.tree_flatten_with_path({"0": [1, {"a": 2}]})
    assert [position_keys(path) for path, _ in leaves] == [[False, True], [False, True, False]]
