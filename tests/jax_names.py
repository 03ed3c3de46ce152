"""Write the lists of JAX's names: `shardwise/jax_modules/jax_names.txt` and `tests/newer_names.txt`.

    python -m tests.jax_names FOLDER ...     writes both files

Each folder holds the unpacked wheel of one release of JAX and has its version as name; the oldest is first. The Python
must be one that the newest of these releases supports; nothing needs to be installed.

`jax_names.txt` has the names of all modules, private ones too. `newer_names.txt` has the public names that the oldest
release lacks.
"""

import sys
from collections import defaultdict
from pathlib import Path

from tests.jax_source import Name, Source, Sources, is_public, public_names, read_release

NEWER_NAMES = Path(__file__).parent / "newer_names.txt"
JAX_NAMES = Path(__file__).resolve().parents[1] / "shardwise/jax_modules/jax_names.txt"
HEAD = """\
# A line has a module of JAX and its names, those that it imports from JAX and jaxlib too. In a private module,
# `name=jax.core` is public in `jax.core`, and `name=jax.core:other` is public there as `other`. A module or name that
# is not in all of JAX {all} is followed by the releases that have it: `name@{last}` is in JAX 0.{last} alone.
# `python -m tests.jax_names` writes this file.
"""


def entries_of_release(release: dict[str, Sources]) -> dict[str, list[str]]:
    """Return the entries of each module of a release, as the file has them."""
    public: dict[Name, Name] = {}
    for name in public_names(release):
        public.setdefault(_origin(name, release), name)

    def entry(module: str, name: str) -> str:
        origin = _origin(Name(module, name), release)
        home = origin if origin.module.startswith("jaxlib") else public.get(origin)
        if home is None or is_public(module):
            return name
        return f"{name}={home.module}" if home.name == name else f"{name}={home.module}:{home.name}"

    return {module: [entry(module, name) for name in names] for module, names in release.items()}


def _origin(name: Name, release: dict[str, Sources]) -> Name:
    """Return the name of the module that defines what a module imports."""
    imported = release.get(name.module, {}).get(name.name, Source()).imported
    return name if imported is None else _origin(imported, release)


def text(releases: dict[int, dict[str, list[str]]]) -> str:
    """Return the text of the file, from the entries of JAX 0.10, 0.11 and so on, by their second number."""
    of: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for release, modules in releases.items():
        for module, entries in modules.items():
            for entry in (module, *entries):
                of[module][entry].append(release)

    def suffixed(entry: str, having: list[int]) -> str:
        return entry if len(having) == len(releases) else f"{entry}@{','.join(map(str, having))}"

    lines = [
        " ".join(suffixed(*item) for item in sorted(entries.items(), key=lambda item: (item[0] != module, item[0])))
        for module, entries in sorted(of.items())
    ]
    head = HEAD.format(all=", ".join(f"0.{release}" for release in releases), last=max(releases))
    return head + "\n".join(lines) + "\n"


def main(folders: list[Path]) -> None:
    """Write both lists from the releases in `folders`."""
    releases = {int(folder.name.split(".")[1]): read_release(folder) for folder in folders}
    JAX_NAMES.write_text(text({number: entries_of_release(release) for number, release in releases.items()}))
    oldest, *newer = (set(public_names(release)) for release in releases.values())
    NEWER_NAMES.write_text("".join(f"{name}\n" for name in sorted(map(".".join, set().union(*newer) - oldest))))


if __name__ == "__main__":
    main([Path(folder) for folder in sys.argv[1:]])
