"""The version of Shardwise."""

__version__ = "0.1.0.dev0"
