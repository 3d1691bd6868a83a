"""What is installed from a wheel, away from the repository, is whole: it runs a
night and translates.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile

import pytest

from tests.support.nights import small_market
from tests.support.places import ROOT

pytestmark = pytest.mark.soak

ROOMS = ("flows", "dtml", "translation", "db")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Of a small market: what a wheel leaves out is missing from a night of any size. The markets that
# the wheel brings are read by `dtml markets`.
NIGHT = ("nightly", "--market-file", "small.toml", "--as-of", "2024-07-01")
REPORTS = "reports/small/*.html"
BUILD = (
    "from setuptools import build_meta; print(build_meta.build_wheel('dist'), "
    "build_meta.build_sdist('dist'))"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
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
def installed(built, tmp_path_factory):
    """The wheel's files, as an installation lays them out."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall(folder)
    return folder


def test_every_file_of_the_packages_is_in_the_wheel(installed):
    ours = {
        file.relative_to(ROOT)
        for room in ROOMS
        for file in (ROOT / room).rglob("*")
        if file.is_file()
    }
    wanted = {file for file in ours if "__pycache__" not in file.parts and file.suffix != ".md"}
    assert len(wanted) > 200
    assert {file for file in wanted if not (installed / file).exists()} == set()


def test_the_pages_name_the_wheel_as_it_is_built(built):
    page = (ROOT / "flows" / "README.md").read_text(encoding="utf-8")
    (named,) = re.findall(r"^WHEEL=dist/(.+)$", page, re.MULTILINE)
    assert [file.name for file in built.glob("*.whl")] == [named]


def by_pip(wheel, folder):
    """Install it as `pip install` in a new virtual environment does; return its folder."""
    done(folder, sys.executable, "-m", "venv", "here")
    done(folder, "here/bin/pip", "install", "--no-index", "--no-deps", str(wheel))
    return folder / "here"


def done(folder, *words):
    """What a program prints that must end well."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DTML_", "PYTHON", "VIRTUAL_ENV"))
    }
    ended = subprocess.run(words, cwd=folder, env=kept, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_wheel_runs_a_night_where_pip_installed_it(built, prefect_api, tmp_path, monkeypatch):
    """Its dependencies are those of this test run: no test downloads them."""
    monkeypatch.setenv("PREFECT_API_URL", prefect_api)
    environment = by_pip(next(built.glob("*.whl")), tmp_path)
    (packages,) = environment.glob("lib/python3*/site-packages")
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    program = str(environment / "bin" / "dtml")
    assert done(tmp_path, program, "--version") == f"dtml {PROJECT['version']}\n"
    (tmp_path / "small.toml").write_text(small_market())
    for command in (NIGHT, ("translate", "models"), ("questions",), ("db", "dictionary")):
        assert done(tmp_path, program, *command)
    assert list(tmp_path.glob(REPORTS))
    assert (tmp_path / "data" / "dtml.sqlite").exists()
    code = "import flows; print(flows.__file__)"
    python = str(environment / "bin" / "python")
    assert str(packages) in done(tmp_path, python, "-P", "-c", code)
