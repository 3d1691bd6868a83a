"""A working folder that a stranger filled with all that a program could take
for its own settings or modules.
"""

from collections.abc import Mapping
from pathlib import Path

LOGGING = """version: 1
handlers:
  theirs: {"()": pathlib.Path.touch, self: MARK}
loggers:
  prefect.extra: {handlers: [theirs]}
"""
MODULE = "raise SystemExit('a file of the working folder was imported: ' + __file__)\n"
# Of the standard library, of what is installed, and our own: each would be imported in place of the
# one that is meant.
MODULES = (
    "alembic",
    "anyio",
    "argparse",
    "asyncio",
    "curl_cffi",
    "db",
    "dtml",
    "encodings",
    "exchange_calendars",
    "flows",
    "json",
    "logging",
    "numpy",
    "pandas",
    "prefect",
    "pyarrow",
    "pydantic",
    "random",
    "safetensors",
    "scipy",
    "sitecustomize",
    "sklearn",
    "sqlalchemy",
    "subprocess",
    "torch",
    "translation",
    "typer",
    "usercustomize",
    "uvicorn",
    "yaml",
    "yfinance",
)
PROFILE = 'active = "theirs"\n[profiles.theirs]\nPREFECT_LOGGING_CONFIG_PATH = "theirs.yml"\n'
SETTINGS: Mapping[str, str] = {
    ".env": "PREFECT_LOGGING_CONFIG_PATH=theirs.yml\nPREFECT_PROFILES_PATH=profiles.toml\n",
    "prefect.toml": 'profiles_path = "profiles.toml"\n[logging]\nconfig_path = "theirs.yml"\n',
    "pyproject.toml": '[tool.prefect.logging]\nconfig_path = "theirs.yml"\n',
    "profiles.toml": PROFILE,
    "prefect.yaml": "pull: [{prefect.deployments.steps.run_shell_script: {script: id}}]\n",
    ".prefectignore": "*\n",
    "theirs.pth": "import pandas\n",
    "pyvenv.cfg": "home = .\ninclude-system-site-packages = true\n",
    "setup.cfg": "[options]\n",
    "alembic.ini": "[alembic]\nscript_location = .\n",
    "matplotlibrc": "backend: module://torch\n",
    "logging.conf": "[loggers]\nkeys = root\n",
    ".curlrc": "proxy = http://127.0.0.1:9\n",
    ".netrc": "default login theirs password theirs\n",
    ".pgpass": "*:*:*:*:theirs\n",
    ".pg_service.conf": "[theirs]\nhost=127.0.0.1\n",
    "pg_service.conf": "[theirs]\nhost=127.0.0.1\n",
    ".duckdbrc": ".shell id\n",
    ".sqliterc": ".shell id\n",
    ".coveragerc": "[run]\nplugins = torch\n",
    ".pdbrc": "!import torch\n",
    "uvicorn.env": "PREFECT_LOGGING_LEVEL=DEBUG\n",
}


def fill_as_a_stranger(folder: Path) -> set[Path]:
    """Leave every file there; return them all.

    A logging configuration that is obeyed makes the file `obeyed`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = SETTINGS | {f"{name}.py": MODULE for name in MODULES}
    configuration = LOGGING.replace("MARK", f'!!str "{folder / "obeyed"}"')
    texts |= dict.fromkeys(("logging.yml", "logging.yaml", "theirs.yml"), configuration)
    for name, text in texts.items():
        (folder / name).write_text(text)
    return {folder / name for name in texts}
