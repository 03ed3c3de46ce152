"""Slurm's node lists, against a compressor that is written here."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.processes.node_list import MAX_HOSTS, expand_node_list


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("login", ["login"]),
        ("node[01-03,7]", ["node01", "node02", "node03", "node7"]),
        ("node[01-03,7],login", ["node01", "node02", "node03", "node7", "login"]),
        ("a1, b[2-3]", ["a1", "b2", "b3"]),
        ("node[098-101]", ["node098", "node099", "node100", "node101"]),
        ("rack[1-2]node[5,7]-ib", ["rack1node5-ib", "rack1node7-ib", "rack2node5-ib", "rack2node7-ib"]),
        ("n[9-11].cluster.org", ["n9.cluster.org", "n10.cluster.org", "n11.cluster.org"]),
        ("n[3]", ["n3"]),
    ],
)
def test_node_lists_expand_in_order(text, hosts):
    assert expand_node_list(text) == hosts


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "a,,b",
        "n[1-",
        "n]1[",
        "n[1-2]]",
        "n[]",
        "n[a-b]",
        "n[3-1]",
        "n[1-2-3]",
        "n[-1]",
        "n[1,]",
        "a b",
        "[[1]]",
    ],
)
def test_malformed_lists_raise_an_error_that_names_the_variable(text):
    with pytest.raises(ValueError, match="SLURM_STEP_NODELIST="):
        expand_node_list(text, "SLURM_STEP_NODELIST")


@pytest.mark.parametrize("text", ["n[0-999999999999]", "a[1-2000]b[1-2000]", f"n[{'9' * 5000}]"])
def test_huge_lists_are_errors_and_allocate_nothing(text):
    with pytest.raises(ValueError, match=rf"more than {MAX_HOSTS}|not a list of numbers"):
        expand_node_list(text, "SLURM_STEP_NODELIST")


RANGES = st.lists(st.tuples(st.integers(0, 150), st.integers(0, 12), st.integers(1, 4)), min_size=1, max_size=4)
NAMES = st.from_regex(r"[a-z][a-z.-]{0,5}", fullmatch=True)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(NAMES, st.none() | RANGES, st.sampled_from(["", "-ib", ".org"])), min_size=1, max_size=4))
def test_compressed_lists_expand_to_their_hosts(groups):
    texts, hosts = [], []
    for prefix, ranges, suffix in groups:
        if ranges is None:
            texts.append(prefix + suffix)
            hosts.append(prefix + suffix)
            continue
        items = []
        for start, length, width in ranges:
            items.append(f"{start:0{width}d}-{start + length:0{width}d}" if length else f"{start:0{width}d}")
            digits = max(width, len(str(start)))
            hosts += [f"{prefix}{number:0{digits}d}{suffix}" for number in range(start, start + length + 1)]
        texts.append(f"{prefix}[{','.join(items)}]{suffix}")
    assert expand_node_list(",".join(texts)) == hosts
