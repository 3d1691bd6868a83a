"""What is installed from a wheel, away from the repository, is whole: it runs a
night and translates.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.places import ROOT

pytestmark = pytest.mark.soak

ROOMS = ("flows", "dtml", "translation", "db")
BUILD = (
    "from setuptools import build_meta; print(build_meta.build_wheel('dist'), "
    "build_meta.build_sdist('dist'))"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of this code."""
    pytest.importorskip("setuptools", reason="no setuptools to build with")
    source = tmp_path_factory.mktemp("source")
    for room in ROOMS:
        shutil.copytree(ROOT / room, source / room, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source / file)
    done = subprocess.run(
        [sys.executable, "-c", BUILD], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return source / "dist"


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files, as an installation lays them out."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall(folder)
    return folder


def test_every_file_of_the_packages_is_in_the_wheel(installed: Path) -> None:
    ours = {
        file.relative_to(ROOT)
        for room in ROOMS
        for file in (ROOT / room).rglob("*")
        if file.is_file()
    }
    wanted = {file for file in ours if "__pycache__" not in file.parts and file.suffix != ".md"}
    assert len(wanted) > 200
    assert {file for file in wanted if not (installed / file).exists()} == set()


def test_the_sdist_builds_too(built: Path) -> None:
    assert next(built.glob("*.tar.gz")).stat().st_size > 100_000


@pytest.mark.parametrize(
    ("command", "made"),
    [
        (
            ("nightly", "simulated", "--as-of", "2015-12-31", "--epochs", "1", "--seeds", "1"),
            "reports/simulated/*.html",
        ),
        (("translate", "models"), "data/dtml.sqlite"),
        (("questions",), None),
        (("db", "dictionary"), None),
        (("markets",), None),
    ],
)
def test_what_is_installed_runs_from_any_folder(
    command: tuple[str, ...], made: str | None, installed: Path, prefect_api: str, tmp_path: Path
) -> None:
    code = "import flows.cli, sys; print(flows.__file__, file=sys.stderr); flows.cli.main()"
    own = {"PYTHONPATH": str(installed), "PREFECT_API_URL": prefect_api, "PYTHONSAFEPATH": "1"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DTML_")}
    done = subprocess.run(
        [sys.executable, "-c", code, *command],
        cwd=tmp_path,
        env=kept | own,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert str(installed) in done.stderr
    assert done.stdout
    assert made is None or list(tmp_path.glob(made))
