"""Read and prepare the environment: folders, the settings of Prefect, the consoles."""

import os
import re
import stat
import sys
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from dtml.errors import DtmlError
from translation.atomic_files import write_whole

WIDTH = 200  # of piped and logged output; a terminal has its own

# Characters that a terminal obeys, or that reorder the text around them.
ORDERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def shown(text: str) -> str:
    """Return a text for people, escaping, as JSON does, what a terminal would obey.

    A store may be somebody else's: a name in it could rewrite the screen.
    """
    return ORDERS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def print_text(text: str) -> None:
    """Print a text for a file as much as for a person, such as Markdown, without a width."""
    print(shown(text))  # noqa: T201 - Rich would wrap it


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of CSV or JSON as they are, and for people if it is to a terminal."""
    sys.stdout.writelines(map(shown, lines) if sys.stdout.isatty() else lines)


class TextConsole(Console):
    """A console whose texts can give no orders to the terminal; Rich's own styles can."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text as Rich lays it out, measured as it is printed."""
        return super().render_str(shown(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield the segments of what is printed."""
        for segment in super().render(renderable, options):
            is_text = segment.control is None
            yield segment._replace(text=shown(segment.text)) if is_text else segment


out = TextConsole(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
err = TextConsole(stderr=True, highlight=False, width=None if sys.stderr.isatty() else WIDTH)


def tell(line: str) -> None:
    """Print a line on standard error as it is; the terminal breaks it."""
    err.print(line, markup=False, soft_wrap=True)


OWN_LOGGERS = ("dtml", "flows", "db", "translation")

PREFECT_DEFAULTS = tomllib.loads(
    Path(__file__).with_name("prefect_defaults.toml").read_text(encoding="utf-8")
)

# Names of variables that a run needs: to find its programs, libraries and network, and with the
# settings of dtml and Prefect.
NEEDED = re.compile(
    r"(DTML|PREFECT|PYTHON|LC|XDG)\w*"
    r"|(OMP|KMP|GOMP|MKL|OPENBLAS|ONEDNN|ATEN|TORCH|PYTORCH|CUDA|NVIDIA|NCCL|GLOO|CT2)\w*"
    r"|(PG|KRB5|SSL_CERT|COVERAGE|MALLOC)\w*"
    r"|PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|TZ|TMPDIR|TEMP|TMP|VIRTUAL_ENV"
    r"|(DY)?LD_\w+|THP_MEM_ALLOC_ENABLE"
    r"|JOURNAL_STREAM"
    r"|(HTTPS?|ALL|NO)_PROXY|(https?|all|no)_proxy|(REQUESTS|CURL)_CA_BUNDLE"
)
NOT_NEEDED = ("DTML_READER_PASSWORD",)  # only `dtml db grant-reader` uses it

MODELS = "models"
WEIGHTS = re.compile(rf"{MODELS}/\w[^/\\\x00-\x1f\x7f]*\.safetensors")  # below the data folder


def keep_needed_variables(of_feeds: Collection[str] = ()) -> None:
    """Remove all variables, some secret, that runs do not need, but those `of_feeds`."""
    for name in list(os.environ):
        is_needed = NEEDED.fullmatch(name) and name not in NOT_NEEDED
        if not is_needed and name not in of_feeds:
            del os.environ[name]


def data_folder() -> Path:
    """Return the folder of models and, by default, the database: `DTML_DATA`, or `data`."""
    return Path(os.environ.get("DTML_DATA", "data")).absolute()


def weights_file(path: str) -> Path:
    """Return the file of a model's weights from the path in its row.

    Raises DtmlError for a path not of the form `WEIGHTS`: a stranger may have made the store.
    """
    if not WEIGHTS.fullmatch(path):
        raise DtmlError(
            f"the store names {path!r} as the file of a model's weights, but only .safetensors "
            f"files directly in {data_folder() / MODELS} are read, so dtml did not write that row: "
            "use a backup of the store, or begin a new one with another DTML_DATABASE_URL"
        )
    return data_folder() / path


def reports_folder() -> Path:
    """Return where the HTML reports lie: `DTML_REPORTS`, or `reports` below the current folder."""
    return Path(os.environ.get("DTML_REPORTS", "reports")).absolute()


def chain_file(market: str) -> Path:
    """Return the path of a market's frozen nights (`flows.freezing`), below that of the reports."""
    return reports_folder() / market / "frozen.jsonl"


def page_of(study: str, row: Mapping[str, Any]) -> Path:
    """Return the path of the page of a backtest, a benchmark or a ranking, from its row."""
    return reports_folder() / str(row["market"]) / f"{study}-{row['id']}.html"


def export_folder() -> Path | None:
    """Return the folder of `DTML_EXPORT`, for nights' Parquet files; None where it is not set."""
    folder = os.environ.get("DTML_EXPORT")
    return Path(folder).absolute() if folder else None


def write_page(file: Path, text: str) -> None:
    """Write a page, whole or not at all."""
    write_whole(file, lambda partial: partial.write_text(text, encoding="utf-8"))


def own_prefect_folder() -> Path:
    """Return where Prefect's files lie unless the user's PREFECT_HOME names another folder."""
    return data_folder() / "prefect"


def prefect_folder() -> Path:
    """Make and return the folder of Prefect's own files, which only this user can read.

    Raises DtmlError for a symbolic link, and for a folder that another user owns or may write to.
    """
    data_folder().mkdir(parents=True, exist_ok=True)
    folder = own_prefect_folder()
    folder.mkdir(mode=0o700, exist_ok=True)  # fails if it is a file
    found = folder.lstat()  # of a symbolic link, not of the folder to which it leads
    faults = {
        "is a symbolic link, which is not followed": stat.S_ISLNK(found.st_mode),
        f"belongs to another user (UID {found.st_uid})": found.st_uid != os.getuid(),
        "can be written to by others": found.st_mode & (stat.S_IWGRP | stat.S_IWOTH),
    }
    for fault, is_so in faults.items():
        if is_so:
            raise DtmlError(f"{folder} {fault}: move it away, or set DTML_DATA to another folder")
    folder.chmod(0o700)  # where the folder was made before, others may still read it
    return folder


def prepare_prefect(*, quiet: bool) -> None:
    """Set the unset variables that Prefect needs, before its import. `quiet`: no console."""
    defaults = PREFECT_DEFAULTS | {"PREFECT_LOGGING_EXTRA_LOGGERS": ",".join(OWN_LOGGERS)}
    own_home = str(own_prefect_folder())
    if os.environ.get("PREFECT_HOME", own_home) != own_home:
        # Other programs may keep their runs in the folder that the user named: none is deleted.
        del defaults["PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED"]
    defaults["PREFECT_HOME"] = own_home
    # By default Prefect would load these from its home, where others may have left them: a logging
    # configuration runs what it names.
    spec = find_spec("prefect")
    assert spec is not None
    package = Path(str(spec.origin)).parent
    defaults["PREFECT_LOGGING_CONFIG_PATH"] = f"{package}/logging/logging.yml"
    defaults["PREFECT_PROFILES_PATH"] = f"{package}/settings/profiles.toml"
    if quiet:
        # Prefect's server stores every line all the same.
        defaults |= {
            "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
            "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
        }
    # The older name of PREFECT_LOGGING_CONFIG_PATH: where the user has set it, that file counts.
    if "PREFECT_LOGGING_SETTINGS_PATH" in os.environ:
        del defaults["PREFECT_LOGGING_CONFIG_PATH"]
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def import_prefect() -> None:
    """Import Prefect in the root folder.

    It reads settings from the folder where it is imported, and some name programs to run.
    """
    here = Path.cwd()
    os.chdir("/")
    try:
        import prefect.flow_engine  # noqa: F401
    finally:
        os.chdir(here)
