"""Names of leaves: the path of a leaf in its pytree as a string, such as `params/layers/0/kernel`.

A name is a JSON pointer (RFC 6901) without its first slash: `~` and `/` inside a key are written as `~0` and `~1`.
Names are never used as file names.
"""

from collections.abc import Iterable
from typing import Any, final

from shardwise import tree_util
from shardwise.errors import CheckpointError, CorruptCheckpoint

_LONGEST_POSITION = 18  # digits
_LONGEST = 4096  # characters


@final
class _Branch:
    """An inner node of a tree that is rebuilt from names: its children, by key."""

    def __init__(self) -> None:
        self.children: dict[str | int, Any] = {}

    def build(self) -> Any:
        """Return a list if the keys are 0, 1, 2, … as positions, otherwise a dict."""
        built = {key: child.build() if isinstance(child, _Branch) else child for key, child in self.children.items()}
        if built and list(built) == list(range(len(built))):
            return list(built.values())
        return {str(key): child for key, child in built.items()}


def join_keys(keys: Iterable[str]) -> str:
    """Return the name of the leaf with these keys."""
    return "/".join(key.replace("~", "~0").replace("/", "~1") for key in keys)


def split_name(name: str) -> list[str]:
    """Return the keys of a name; at least one, because a root without keys also has the empty name."""
    return [key.replace("~1", "/").replace("~0", "~") for key in name.split("/")]


def leaf_name(path: tuple[Any, ...]) -> str:
    """Return the name of the leaf at a key path.

    Raises:
        CheckpointError: if a key has a NUL character, or if the name is too long.
    """
    return check_name(join_keys(tree_util.keystr((key,), simple=True) for key in path))


def check_name(name: str) -> str:
    """Return a name, after checking that a checkpoint can hold it.

    Raises:
        CheckpointError: if a key has a NUL character, or if the name is too long.
    """
    if "\0" in name:
        raise CheckpointError(f"the key {name!r} has a NUL character: rename it")
    if len(name) > _LONGEST:
        raise CheckpointError(
            f"the path of a leaf has {len(name)} characters, more than {_LONGEST}: shorten its keys. "
            f"It begins with {name[:80]!r}"
        )
    return name


def position_keys(path: tuple[Any, ...]) -> list[bool]:
    """Return, for each key of a path, whether it is a position in a sequence."""
    return [isinstance(key, (tree_util.SequenceKey, tree_util.FlattenedIndexKey)) for key in path]


def nested(leaves: dict[str, tuple[list[bool], Any]]) -> Any:
    """Return nested dicts and lists with these leaves. Each name is mapped to its `position_keys` and its value.

    Raises:
        CorruptCheckpoint: if a leaf is inside another leaf, or if a position is not a number.
        CheckpointError: if leaves are nested too deeply.
    """
    if "" in leaves and not leaves[""][0]:  # the root is a leaf
        return leaves[""][1]
    root = _Branch()
    for name, (positions, leaf) in leaves.items():
        keys = zip(split_name(name), positions, strict=True)
        typed = [_position(name, key) if is_position else key for key, is_position in keys]
        branch = root
        for key in typed[:-1]:
            branch = branch.children.setdefault(key, _Branch())
            if not isinstance(branch, _Branch):
                raise CorruptCheckpoint(f"the leaf {name!r} is inside another leaf")
        if typed[-1] in branch.children:
            raise CorruptCheckpoint(f"other leaves are inside the leaf {name!r}")
        branch.children[typed[-1]] = leaf
    try:
        return root.build()
    except RecursionError:
        raise CheckpointError("the tree is nested too deeply to be built from names: restore it into `like`") from None


def is_position(key: str) -> bool:
    """Return whether a key is a decimal number in ASCII digits. `str.isdecimal` accepts other digits too."""
    return key.isascii() and key.isdecimal()


def _position(name: str, key: str) -> int:
    if not is_position(key) or len(key) > _LONGEST_POSITION:
        raise CorruptCheckpoint(f"the key {key[:80]!r} of the leaf {name[:200]!r} is not a position in a sequence")
    return int(key)
