"""Fake installed packages with PJRT plugins, in a folder of `sys.path`."""

import textwrap


def add_distribution(folder, name, entry_points):
    """Write the metadata of an installed distribution."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


def add_package(folder, *names, library=None):
    """Write a package whose code must not run, and a library in it."""
    path = folder.joinpath(*names)
    path.mkdir(parents=True)
    (path / "__init__.py").write_text("raise AssertionError('the code of the package must not run')\n")
    if library:
        (path / library).touch()
    return path


def add_module(folder, name, code):
    """Write a module by its dotted name."""
    path = folder.joinpath(*name.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(code))
