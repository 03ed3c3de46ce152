"""The tests of Shardwise.

A regular package, since a library may install a package `tests` of its own, as Pgx does: a namespace package would lose to it.
"""
