"""A backup brings back the store and its models as they were, or nothing, and
says which of them it could not keep.
"""

import hashlib
import json
import re

import pytest

from db.engine import open_engine
from db.migrations import REVISION
from tests.support.benchmark_rows import ranker
from tests.support.stores import FIRST, WEIGHTS, contents, fill, keep_weights, rows, url_of


@pytest.fixture
def kept(filled, tmp_path, dtml):
    """A backup of that store."""
    assert dtml(url_of(filled), "backup", str(tmp_path / "kept"))[0] == 0
    return tmp_path / "kept"


def test_a_backup_comes_back_as_it_was_with_its_weights(
    engine, store_url, dtml, tmp_path, monkeypatch
):
    fill(engine)
    keep_weights(tmp_path / "data")
    monkeypatch.setenv("DTML_REPORTS", str(tmp_path / "reports"))
    chain = tmp_path / "reports" / "toy" / "frozen.jsonl"
    chain.parent.mkdir(parents=True)
    chain.write_text("frozen nights")
    folder = tmp_path / "backups" / "kept"
    code, said, complaint = dtml(store_url, "backup", str(folder))
    assert (code, complaint) == (0, "")
    assert re.search(rf"\b{rows(store_url)} rows .*1 checkpoint\b", said)
    assert {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()} == {
        "dtml.sqlite",
        "manifest.json",
        FIRST,
        "frozen/toy.jsonl",
    }
    assert list(folder.parent.iterdir()) == [folder]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["schema"] == REVISION
    assert manifest["rows"]["prediction"] == 3
    monkeypatch.setenv("DTML_DATA", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("DTML_REPORTS", str(tmp_path / "elsewhere"))
    again = f"sqlite:///{tmp_path}/again.sqlite"
    code, said, complaint = dtml(again, "restore", str(folder))
    assert (code, complaint) == (0, "")
    assert re.search("restored;.*equal", said)
    assert contents(open_engine(again)) == contents(engine)
    assert (tmp_path / "elsewhere" / FIRST).read_bytes() == WEIGHTS
    assert (tmp_path / "elsewhere" / "toy" / "frozen.jsonl").read_text() == "frozen nights"
    assert dtml(again, "check")[0] == 0
    monkeypatch.setenv("DTML_DATA", str(tmp_path / "third"))
    code, _, complaint = dtml(again, "restore", str(folder))
    assert (code, "not empty" in complaint) == (2, True)
    assert not (tmp_path / "third" / FIRST).exists()


def change_manifest(folder, **changed):
    """A manifest with other words, and with the hash of the store as it now is."""
    manifest = json.loads((folder / "manifest.json").read_text()) | changed
    manifest["files"]["dtml.sqlite"] = hashlib.sha256(
        (folder / "dtml.sqlite").read_bytes()
    ).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


def _flip(file):
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


DAMAGE = {
    "store": (
        lambda folder: _flip(folder / "dtml.sqlite"),
        1,
        "dtml.sqlite:.*changed or damaged",
    ),
    "weights": (
        lambda folder: _flip(folder / FIRST),
        1,
        "first.safetensors:.*changed or damaged",
    ),
    "weights lost": (
        lambda folder: (folder / FIRST).unlink(),
        1,
        "first.safetensors:.*not exist",
    ),
    "no manifest": (
        lambda folder: (folder / "manifest.json").unlink(),
        2,
        "not a backup",
    ),
    "no JSON": (
        lambda folder: (folder / "manifest.json").write_text("{"),
        2,
        "not a backup",
    ),
    "a list of files": (
        lambda folder: (folder / "manifest.json").write_text(
            json.dumps(
                json.loads((folder / "manifest.json").read_text()) | {"files": ["dtml.sqlite"]}
            )
        ),
        2,
        "`dtml db backup`",
    ),
    "another schema": (
        lambda folder: change_manifest(folder, schema="9999"),
        2,
        "schema 9999,.*install dtml",
    ),
    "path out": (
        lambda folder: change_manifest(folder, files={"../x": "0", "dtml.sqlite": ""}),
        2,
        "names",
    ),
}


@pytest.mark.one_case
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_backup_is_refused_in_one_line_and_nothing_is_stored(
    kept, dtml, tmp_path, damage
):
    spoil, expected, words = DAMAGE[damage]
    spoil(kept)
    code, said, complaint = dtml(f"sqlite:///{tmp_path}/again.sqlite", "restore", str(kept))
    assert (code, said, complaint.count("\n")) == (expected, "", 1), complaint
    assert re.search(words, complaint)
    assert (
        not (tmp_path / "again.sqlite").exists() or rows(f"sqlite:///{tmp_path}/again.sqlite") == 0
    )


FOREIGN = [
    "prefect/logging.yml",
    "models/sitecustomize.py",
    "models/.hidden.safetensors",
    "models/deep/first.safetensors",
    "pandas.py",
    ".env",
    "dtml.sqlite-wal",
    "MODELS/first.safetensors",
    "models/first.safetensors\n",
]


def _lay(folder, name):
    """Put a file with this name into a backup; return its hash."""
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(WEIGHTS)
    return hashlib.sha256(WEIGHTS).hexdigest()


@pytest.mark.one_case
@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("name", FOREIGN)
def test_a_backup_with_any_other_file_is_refused_by_its_name(
    kept,
    dtml,
    tmp_path,
    monkeypatch,
    name,
    is_named,
):
    digest = _lay(kept, name)
    if is_named:
        files = json.loads((kept / "manifest.json").read_text())["files"]
        change_manifest(kept, files=files | {name: digest})
    refused_whole(kept, dtml, tmp_path, monkeypatch, ascii(name))


def test_weights_of_no_model_in_the_backup_are_refused_by_name(kept, dtml, tmp_path, monkeypatch):
    files = json.loads((kept / "manifest.json").read_text())["files"]
    change_manifest(
        kept, files=files | {"models/other.safetensors": _lay(kept, "models/other.safetensors")}
    )
    refused_whole(kept, dtml, tmp_path, monkeypatch, "'models/other.safetensors'")


@pytest.mark.soak
@pytest.mark.parametrize("name", ["dtml.sqlite", FIRST])
def test_a_backup_with_a_link_in_place_of_a_file_is_refused(
    kept, dtml, tmp_path, monkeypatch, name
):
    (kept / name).rename(tmp_path / "elsewhere")
    (kept / name).symlink_to(tmp_path / "elsewhere")
    refused_whole(kept, dtml, tmp_path, monkeypatch, ascii(name))


def refused_whole(folder, dtml, tmp_path, monkeypatch, named):
    """A restore ends with one line that names the file; no row and no file is there."""
    monkeypatch.setenv("DTML_DATA", str(tmp_path / "empty"))
    url = f"sqlite:///{tmp_path}/again.sqlite"
    code, said, complaint = dtml(url, "restore", str(folder))
    assert (code, said, complaint.count("\n")) == (2, "", 1), complaint
    assert named in complaint
    assert not (tmp_path / "again.sqlite").exists() or rows(url) == 0
    assert [file for file in (tmp_path / "empty").rglob("*") if file.is_file()] == []


def test_weights_of_other_content_in_their_place_are_kept_and_named(kept, dtml, tmp_path):
    (tmp_path / "data" / FIRST).write_bytes(b"other")
    code, _, complaint = dtml(f"sqlite:///{tmp_path}/again.sqlite", "restore", str(kept))
    assert code == 2
    assert re.search("DTML_DATA .*empty folder", complaint)
    assert (tmp_path / "data" / FIRST).read_bytes() == b"other"
    assert rows(f"sqlite:///{tmp_path}/again.sqlite") == 0


def test_a_backup_says_which_weights_it_could_not_keep(filled, dtml, tmp_path):
    (tmp_path / "data" / FIRST).unlink()
    folder = tmp_path / "kept"
    code, said, complaint = dtml(url_of(filled), "backup", str(folder))
    assert (code, "0 checkpoints" in said) == (0, True)
    assert re.search(r"models/first\.safetensors,.* first \(.*not exist", complaint)
    assert [
        each["run_id"] for each in json.loads((folder / "manifest.json").read_text())["absent"]
    ] == [
        "first",
        ranker()["id"],
    ]
    code, _, complaint = dtml(f"sqlite:///{tmp_path}/again.sqlite", "restore", str(folder))
    assert code == 0
    assert re.search(r"weights of first \(.*not exist", complaint)


def test_a_folder_that_holds_something_gets_no_backup(filled, dtml, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "diary.txt").touch()
    code, _, complaint = dtml(url_of(filled), "backup", str(folder))
    assert (code, "not an empty folder" in complaint) == (2, True)
    code, _, complaint = dtml(url_of(filled), "backup", str(folder / "diary.txt"))
    assert (code, "not an empty folder" in complaint) == (2, True)
    assert [file.name for file in folder.iterdir()] == ["diary.txt"]
    assert list(tmp_path.glob("*.partial")) == []
