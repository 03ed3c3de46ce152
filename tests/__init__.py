"""The tests of Shardwise.

A regular package: a library may install a package `tests` of its own, as Pgx does, and a namespace package would
lose to it.
"""
