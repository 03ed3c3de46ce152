"""The names of JAX's modules, private ones too: `jax_names.txt`, which `python -m tests.jax_names` writes."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from shardwise.jax_modules.version import __version_info__


class PublicName(NamedTuple):
    """A name of a public module."""

    module: str
    name: str


JaxNames = Mapping[str, Mapping[str, PublicName | None]]  # modules, their names, and under which each is public


@cache
def jax_names() -> JaxNames:
    """Return the names of the JAX that Shardwise follows."""
    return read_names(Path(__file__).with_suffix(".txt").read_text(), __version_info__[1])


def read_names(text: str, release: int) -> JaxNames:
    """Return the names of JAX 0.`release`, or of the newest release that the text lists."""
    rows = [[entry.partition("@") for entry in line.split()] for line in text.splitlines() if not line.startswith("#")]
    newest = max(int(having.rpartition(",")[2]) for row in rows for _, _, having in row if having)
    wanted = str(min(release, newest))
    modules = ([entry for entry, _, having in row if not having or wanted in having.split(",")] for row in rows)
    return {module: dict(map(_read_entry, entries)) for module, *entries in filter(None, modules)}


def _read_entry(entry: str) -> tuple[str, PublicName | None]:
    name, _, public = entry.partition("=")
    module, _, other = public.partition(":")
    return name, PublicName(module, other or name) if public else None
