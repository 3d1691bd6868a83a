"""What the process of own code may write, with Landlock and without, and how it answers."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dtml.own import confinement
from dtml.own.code import OwnCode, OwnCodeError
from dtml.own.confinement import write_only_in
from dtml.own.process import SANDBOX, IsolatedCode
from tests.support.panels import made_bars, made_panel

pytestmark = pytest.mark.slow

PANEL = made_panel(made_bars(9))


def outcome_in_a_child(act):
    """Run something in a process of its own: 0, or the number of the error that the system gave."""
    child = os.fork()
    if child == 0:
        code = 255
        try:
            act()
            code = 0
        except OSError as error:
            code = error.errno or 255
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def folders(tmp_path):
    """The one that a process may write in, and another with a file."""
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    other.mkdir()
    (other / "there").write_text("as it was")
    return own, other


def locked():
    return confinement._landlocked(Path("/"))


@pytest.fixture
def landlock():
    if outcome_in_a_child(lambda: None if locked() else os._exit(1)):
        pytest.skip("this system has no Landlock")


OUTSIDE = {
    "a new file": lambda folder: (folder / "new").write_text("kept"),
    "a file that is there": lambda folder: (folder / "there").write_text("kept"),
    "a folder": lambda folder: (folder / "new").mkdir(),
    "a link": lambda folder: (folder / "new").symlink_to("kept"),
    "a file that goes": lambda folder: (folder / "there").unlink(),
    "another program's file": lambda folder: subprocess.run(
        ["touch", folder / "new"], check=True, stderr=subprocess.DEVNULL
    ),
}


@pytest.mark.parametrize("way", OUTSIDE)
def test_a_confined_process_changes_nothing_outside_its_folder(way, folders, landlock):
    own, other = folders

    def act():
        write_only_in(own)
        OUTSIDE[way](other)

    assert outcome_in_a_child(act) != 0
    assert [each.name for each in other.iterdir()] == ["there"]
    assert (other / "there").read_text() == "as it was"


def test_a_confined_process_may_use_its_folder_and_temporary_files(folders, landlock):
    own, other = folders

    def act():
        write_only_in(own)
        Path("kept").write_text((other / "there").read_text())
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"anything")

    assert outcome_in_a_child(act) == 0
    assert (own / "kept").read_text() == "as it was"


def test_without_landlock_no_file_grows(folders, monkeypatch):
    own, other = folders
    monkeypatch.setattr(confinement, "_landlocked", lambda *_: False)

    def act():
        write_only_in(own)
        (other / "new").write_text("kept")

    assert outcome_in_a_child(act) != 0
    assert (other / "new").read_text() == ""


def test_own_code_that_keeps_a_file_is_told_where_it_may_not(tmp_path, landlock):
    text = (
        f"def f(bars):\n    bars.close.to_pickle({str(tmp_path / 'kept')!r})\n    return "
        "bars.close\n"
    )
    with pytest.raises(OwnCodeError, match=r"mine\.py, line 2: .*write.*folder"):
        IsolatedCode(OwnCode("mine.py", text)).values(PANEL, [300])


STARTED = """
import os, time
def f(bars):
    said, told = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(told, str(os.getpid()).encode())
            time.sleep(600)
        os._exit(0)
    raise ValueError(os.read(said, 99).decode())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no other system tells whose an orphan was")
def test_what_own_code_started_ends_with_it_whatever_its_session():
    with pytest.raises(OwnCodeError, match="ValueError: ") as error:
        IsolatedCode(OwnCode("mine.py", STARTED)).values(PANEL, [300])
    with pytest.raises(ProcessLookupError):
        os.kill(int(str(error.value).rpartition(" ")[2]), 0)


ENDLESS = """
def f(bars):
    import os, time
    os.setsid() if os.fork() == 0 else None
    time.sleep(600)
"""


def test_own_code_that_is_late_is_ended_and_the_next_question_is_answered(monkeypatch):
    monkeypatch.setenv("DTML_CODE_SECONDS", "1")
    with pytest.raises(OwnCodeError, match="DTML_CODE_SECONDS"):
        IsolatedCode(OwnCode("mine.py", ENDLESS)).values(PANEL, [300])
    monkeypatch.delenv("DTML_CODE_SECONDS")
    honest = OwnCode("mine.py", "def f(bars):\n    return bars.close\n")
    assert IsolatedCode(honest).description["features"] == ["f"]


@pytest.mark.parametrize("value", ["abc", "0", "-1", "inf", "nan"])
def test_a_limit_that_is_no_number_above_0_is_named(monkeypatch, value):
    monkeypatch.setenv("DTML_CODE_SECONDS", value)
    with pytest.raises(OwnCodeError, match=f"^DTML_CODE_SECONDS={value}: "):
        SANDBOX.ask("mine.py", {}, {})
    assert SANDBOX.limit("GIGABYTES", "4") == 4
