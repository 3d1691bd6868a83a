"""A small life of the product by its commands alone: `python -m tests.acceptance.life FOLDER`.

It leaves in the folder what a user is left with: a store, weights and pages; what each command
printed and its exit code (`said.json`); and the pages of the dashboard (`browsed.json`).
"""

import json
import os
import re
import shutil
import sys
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from tests.support.places import ROOT

HERE = Path(__file__).parent
DEMO = ROOT / "flows" / "translating" / "demo"
STORE = "data/dtml.sqlite"
SPAN = "acc --from 2024-06-03 --to 2024-06-14"
COMMANDS = f"""
nightly acc --market-file acc.toml --as-of 2024-07-08 --nights 6 --json
freeze acc --since 2024-07-01 --json
nightly acc --as-of 2024-07-08 --json
fetch acc --as-of 2024-07-08 --json
predict acc --as-of 2024-07-08 --json
score acc --as-of 2024-07-08 --json
report acc --as-of 2024-07-08
backtest {SPAN} --retrain-every 5 --json
backtest {SPAN} --retrain-every 5 --markdown
ranking {SPAN} --json
ranking {SPAN} --markdown
translate train demo/demo.toml --json
translate text ludi --model demo --json
translate queue ludi --model demo
translate work
translate jobs --json
translate models --json
orders acc --capital 100000 --json
history F01A --json
replay acc --all --json
freeze acc --check --json
status acc --json
runs --json
markets --json
query "select symbol, probability from latest_prediction order by symbol" --json
db check --json
db export exported
questions --json
nightly nowhere
nightly acc --nights 0
predict acc --as-of 2131-07-04
backtest acc --from 2024-06-14 --to 2024-06-03
query "drop table price"
history NOBODY
report acc --as-of 2024-05-01
translate text ludi --model nobody
""".strip().splitlines()
COMMANDS += [f"questions {number} --market acc --json" for number in range(1, 21)]
OF_A_KIND = 2  # pages visited whose addresses differ in names and values alone


def live(folder: Path) -> None:
    """Run all commands in a folder, and then visit the dashboard."""
    from flows.cli import app  # late: the environment must be set before
    from flows.failures import run_command

    shutil.copy(HERE / "acc.toml", folder)
    shutil.copytree(DEMO, folder / "demo")
    recipe = folder / "demo" / "demo.toml"
    brief = recipe.read_text().replace("updates = 450", "updates = 20")
    recipe.write_text(brief.replace("check_every = 50", "check_every = 10"))
    os.chdir(folder)
    os.environ |= {"DTML_DATA": str(folder / "data"), "DTML_REPORTS": str(folder / "reports")}
    said = {}
    for line in COMMANDS:
        printed = StringIO()
        sys.argv = [
            "dtml",
            *(quoted or word for quoted, word in re.findall(r'"(.*?)"|(\S+)', line)),
        ]
        with redirect_stdout(printed), redirect_stderr(StringIO()):
            code = run_command(app)
        said[line] = {"code": code, "printed": printed.getvalue()}
    (folder / "said.json").write_text(json.dumps(said))
    (folder / "browsed.json").write_text(json.dumps(browsed(folder)))


def browsed(folder: Path) -> dict[str, tuple[int, str]]:
    """Return the status and text of pages of each kind that links lead to, by their addresses."""
    from tests.support.browser import Page
    from tests.support.dashboard_process import ask, port_of, started

    found: dict[str, tuple[int, str]] = {}
    waiting, kinds = ["/", "/table/night_log"], Counter[tuple[object, ...]]()
    with started(f"sqlite:///{folder / STORE}", "--port", "0") as process:
        port = port_of(process)
        while waiting:
            address = waiting.pop(0)
            found[address] = ask(port, address)
            links = Page(found[address][1]).links
            for address in sorted({link.partition("#")[0] for link in links}):
                parts = urlsplit(address)
                room, *rest = parts.path.strip("/").split("/")
                kind = room, len(rest), *sorted({name for name, _ in parse_qsl(parts.query)})
                is_page = address.startswith("/") and room != "table" and "q=" not in address
                is_new = address not in found and address not in waiting
                if is_page and is_new and kinds[kind] < OF_A_KIND:
                    kinds[kind] += 1
                    waiting.append(address)
    return found


if __name__ == "__main__":
    live(Path(sys.argv[1]).resolve())
