"""A program for `shardwise doctor`: it prints the PJRT plugins of this machine as JSON."""

import json
import warnings

from shardwise.errors import PlatformError
from shardwise.runtime.plugins.create_client import load
from shardwise.runtime.plugins.plugin import Plugin
from shardwise.runtime.plugins.registry import plugins


def main() -> None:
    """Print every plugin with the reason why its library cannot be loaded, and the warnings of the search for them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [
            {"name": plugin.name, "library": plugin.library, "priority": plugin.priority, "problem": _problem(plugin)}
            for plugin in plugins.all()
        ]
    print(json.dumps({"plugins": found, "warnings": [str(warning.message) for warning in caught]}))


def _problem(plugin: Plugin) -> str:
    try:
        if plugin.has_library:
            load(plugin)
    except PlatformError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main()
