"""`python -m translation`: models are trained and used without Prefect, a database or stocks."""

import io
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.places import ROOT
from tests.support.recipe import SOURCES, write_recipe

pytestmark = pytest.mark.slow


def alone(folder: Path, *arguments: str, given: str = "") -> "subprocess.CompletedProcess[str]":
    """What `python -m translation` says where Prefect, SQLAlchemy and the rest
    of the product cannot be imported.
    """
    blocked = '"prefect", "sqlalchemy", "flows", "dtml", "db"'
    code = (
        f"import runpy, sys; sys.modules |= dict.fromkeys(({blocked})); "
        "runpy.run_module('translation', alter_sys=True)"
    )
    code = code.replace("run_module('translation'", "run_module('translation', run_name='__main__'")
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        input=given,
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe and its model."""
    folder = tmp_path_factory.mktemp("alone")
    write_recipe(folder)
    said = alone(folder, "train", "tiny.toml")
    assert said.returncode == 0, said.stderr
    scored, model = said.stdout.splitlines()
    assert scored.startswith("made: BLEU ")
    assert model == "models/tiny"
    assert "step 160, epoch " in said.stderr
    assert "160 updates of" in said.stderr
    return folder


@pytest.mark.soak
def test_it_trains_scores_and_translates_line_by_line(folder: Path) -> None:
    said = alone(folder, "translate", "models/tiny", given=f"{SOURCES[0]}\n\n{SOURCES[1]}\n")
    assert said.returncode == 0, said.stderr
    first, empty, second = said.stdout.splitlines()
    assert first
    assert second
    assert empty == ""


@pytest.mark.soak
def test_mistakes_are_one_line_and_2(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    for arguments, part in (
        (("train", "none.toml"), "none.toml"),
        (("translate", "models/none"), "models/none"),
        (("translate", "models/tiny", "--beams", "0"), "beams must be 1"),
        (("--device", "cuda", "translate", "models/tiny"), "no CUDA device"),
        (("translate", "models/tiny"), "input is not UTF-8"),
    ):
        monkeypatch.setattr(sys, "argv", ["translation", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Gr\xfc\xdfe\n")))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(SystemExit) as ended:
            runpy.run_module("translation", run_name="__main__", alter_sys=True)
        said = capfd.readouterr().err
        assert ended.value.code in {1, 2}
        assert len(said.splitlines()) == 1
        assert part in said


@pytest.mark.by_quarters
@pytest.mark.soak
def test_two_processes_train_the_same_model_to_the_last_bit(tmp_path: Path) -> None:
    file = write_recipe(tmp_path, "shared", updates=40, check_every=20, dropout=0.1)
    file.write_text(file.read_text().replace("accumulate = 1", "accumulate = 2"))
    hashes = []
    for processes in ("1", "2"):
        said = subprocess.run(
            [
                sys.executable,
                "-m",
                "translation",
                "train",
                file.name,
                "--to",
                processes,
                "--processes",
                processes,
            ],
            cwd=tmp_path,
            env=os.environ
            | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": processes},  # a thread for each process
            check=False,
            capture_output=True,
            text=True,
        )
        assert said.returncode == 0, said.stderr
        card = json.loads((tmp_path / processes / "shared" / "model.json").read_text())
        assert card["made"]["processes"] == int(processes)
        assert ("2 processes" in said.stderr) == (processes == "2")
        hashes.append(card["weights_hash"])
    assert hashes[0] == hashes[1]
