"""Delete a folder as far as possible, while other programs may delete it too. `shutil.rmtree` stops at an error."""

import os
from collections.abc import Callable
from pathlib import Path


def delete_tree(path: Path) -> None:
    """Delete a file, a link or a folder with everything in it. A file that does not exist is no error.

    Raises:
        OSError: the first error, after all other files were deleted.
    """
    errors: list[OSError] = []

    def attempt(delete: Callable[[str], None], name: str) -> None:
        try:
            delete(name)
        except OSError as error:
            errors.append(error)

    if _is_folder(str(path)):
        for folder, folders, files in os.walk(path, topdown=False, onerror=errors.append):
            for name in (os.path.join(folder, each) for each in (*files, *folders)):
                attempt(os.rmdir if _is_folder(name) else os.unlink, name)
    attempt(os.rmdir if _is_folder(str(path)) else os.unlink, str(path))
    for error in errors:
        if not isinstance(error, FileNotFoundError):
            raise error


def _is_folder(name: str) -> bool:
    return os.path.isdir(name) and not os.path.islink(name)
