"""Make the record of what a user sees anew, and print what changed: `python -m tests.acceptance`.

On another processor, or with other packages, than `made_with` in the record says, make it anew
before the change as well: what is printed then is of the processor or the packages.
"""

import tempfile
from pathlib import Path

from tests.acceptance.record import RECORD, differences, live, read, write
from tests.support.prefect_server import end_shared_server, shared_server
from tests.support.run_folder import remove_run_folder


def main() -> None:
    try:
        with tempfile.TemporaryDirectory() as folder:
            facts = live(Path(folder), shared_server())
    finally:
        end_shared_server()
        remove_run_folder()
    if RECORD.exists():
        print("\n".join(differences(read()[1], facts, is_exact=True)) or "nothing changed")  # noqa: T201
    write(facts)


if __name__ == "__main__":
    main()
