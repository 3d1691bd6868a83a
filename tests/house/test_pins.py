"""The versions that are installed: `pyproject.toml`, `constraints.txt`, `pylock.toml` and the
pages agree, and every pin can be installed on every Python and system that is supported.
"""

import re
import tomllib

import pytest
from packaging.pylock import Pylock
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import compatible_tags, cpython_tags, mac_platforms
from packaging.utils import canonicalize_name

from tests.support.places import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINS = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split("\n")
    if line
]
LOCK_TEXT = (ROOT / "pylock.toml").read_text(encoding="utf-8")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
GLIBC = (31, 28, 27, 26, 24, 17, 12, 5)  # Debian 11 and what came before it
OF_THE_MACHINE = "torch"  # the user chooses its build; no file pins it
SYSTEMS = {
    "linux": ("linux", "Linux", "x86_64"),
    "linux on ARM": ("linux", "Linux", "aarch64"),
    "macOS": ("darwin", "Darwin", "arm64"),
}


def lock():
    return Pylock.from_dict(tomllib.loads(LOCK_TEXT))


def environment_of(python, system):
    """The markers of a Python on a system."""
    sys_platform, platform_system, machine = SYSTEMS[system]
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{python}.9",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": platform_system,
        "platform_version": "",
        "python_full_version": f"{python}.9",
        "python_version": python,
        "sys_platform": sys_platform,
    }


def tags_of(python, system):
    """The tags of the wheels that a Python on a system takes."""
    _, _, machine = SYSTEMS[system]
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in GLIBC]
    platforms.extend(f"{name}_{machine}" for name in ("manylinux2014", "manylinux2010"))
    if system == "macOS":
        platforms = list(mac_platforms((14, 0), machine))
    version = tuple(int(part) for part in python.split("."))
    yield from cpython_tags(version, platforms=platforms)
    yield from compatible_tags(version, f"cp{python.replace('.', '')}", platforms)


def pinned_versions(python, system):
    """The versions of `constraints.txt` for a Python on a system."""
    markers = dict(environment_of(python, system))
    return {
        canonicalize_name(pin.name): str(pin.specifier).removeprefix("==")
        for pin in PINS
        if pin.marker is None or pin.marker.evaluate(markers)
    }


def test_every_text_names_the_same_versions_of_python():
    supported = SpecifierSet(PROJECT["requires-python"])
    minors = [f"3.{minor}" for minor in range(30) if f"3.{minor}.1" in supported]
    assert minors == list(PYTHONS)
    classified = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert classified == minors
    span = f"{minors[0]} to {minors[-1]}"
    for page in ("README.md", "CONTRIBUTING.md", "Makefile"):
        assert span in " ".join((ROOT / page).read_text(encoding="utf-8").split()), page
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "(3, 11) <= sys.version_info < (3, 15)" in makefile


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_holds_a_wheel_of_every_pin_for_every_python_and_system(python, system):
    environment = environment_of(python, system)
    pinned = pinned_versions(python, system)
    chosen = lock().select(environment=environment, tags=list(tags_of(python, system)))
    locked = {package.name: str(package.version) for package, _ in chosen}
    assert len(locked) > 100
    assert {name: version for name, version in locked.items() if pinned.get(name) != version} == {}


def test_the_lock_holds_every_dependency_of_the_wheel_and_of_its_extras():
    lines = list(PROJECT["dependencies"])
    for name, extra in PROJECT["optional-dependencies"].items():
        if name != "all":
            lines.extend(extra)
    wanted = {Requirement(line).name for line in lines} - {OF_THE_MACHINE}
    versions = {package.name: package.version for package in lock().packages}
    missing = {name for name in wanted if canonicalize_name(name) not in versions}
    assert missing == set()
    for line in lines:
        requirement = Requirement(line)
        if requirement.name != OF_THE_MACHINE:
            version = versions[canonicalize_name(requirement.name)]
            assert version in requirement.specifier, line


def test_the_lock_names_each_file_by_its_hash_and_no_host():
    for package in lock().packages:
        assert package.index is None
        assert package.sdist is None
        for wheel in package.wheels or ():
            assert wheel.url is None
            assert wheel.path == f"wheels/{wheel.filename}"
            assert re.fullmatch(r"[0-9a-f]{64}", wheel.hashes["sha256"]), wheel.filename
    assert "://" not in LOCK_TEXT


def test_every_extra_that_a_page_or_a_message_names_exists():
    extras = PROJECT["optional-dependencies"]
    (everything,) = extras["all"]
    assert Requirement(everything).extras == extras.keys() - {"all"}
    pages = [*ROOT.glob("*.md")]
    for room in ("benchmarks", "db", "dtml", "flows", "translation"):
        pages += [*(ROOT / room).rglob("*.md"), *(ROOT / room).rglob("*.py")]
    found = (
        re.findall(r"(?:dtml-nightshift|\$WHEEL)\[([a-z0-9,]+)\]", page.read_text(encoding="utf-8"))
        for page in pages
    )
    named = {name for names in found for each in names for name in each.split(",")}
    assert {"excel", "postgres"} <= named <= extras.keys()
