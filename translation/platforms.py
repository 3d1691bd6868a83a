"""Refuse to run on Windows, whose Python lacks what this program is built on."""

import sys

WINDOWS = (
    "error: dtml-nightshift needs fork and fcntl, which Python on Windows lacks: "
    "install it in WSL (Windows Subsystem for Linux) and run it there"
)


def exit_on_windows() -> None:
    """Exit with code 1 and one line on standard error if the system is Windows.

    Call it before the first import of a module that imports fcntl, such as
    `translation.atomic_files`: that import would end in a traceback.
    """
    if sys.platform == "win32":
        sys.exit(WINDOWS)
