"""The tests. A regular package, since some libraries install a package `tests` that would hide a namespace package."""
