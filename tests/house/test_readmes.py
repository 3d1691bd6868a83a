"""Laws of the pages in Markdown: links that lead somewhere, and commands that parse."""

import re
import shlex

import pytest

from benchmarks.results import RESULTS
from db.views import views
from dtml.markets import market_names
from dtml.markets.definition import (
    Checks,
    Columns,
    Constituent,
    FeedAccess,
    Index,
    Listed,
    MarketFile,
    ModelSettings,
    SecondSource,
    Sessions,
    Trading,
)
from tests.support.commands import whole_command
from tests.support.places import ROOT

PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "flows/README.md",
    "dtml/README.md",
    "dtml/own/README.md",
    "db/README.md",
    "db/CONNECT.md",
    "db/QUESTIONS.md",
    "translation/README.md",
    "benchmarks/README.md",
)
TEXT = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
ASSIGNED = re.compile(r"\w+=\S*")
COMMAND = whole_command()


def blocks_of(page):
    """The blocks of a page that say no language: what is typed into a shell."""
    for language, block in re.findall(
        r"^```(\w*)\n(.*?)^```$", TEXT[page], re.DOTALL | re.MULTILINE
    ):
        if not language:
            yield block


def commands_of(page):
    """The words after `dtml` of every command in a block of a page, however many lines it takes."""
    for block in blocks_of(page):
        held = ""
        for line in block.replace("\\\n", " ").splitlines():
            held += line + "\n"
            try:
                words = shlex.split(held, comments=True)
            except ValueError:  # a line ends inside quotes
                continue
            held = ""
            yield from after_dtml(words)


def after_dtml(words):
    """What follows the program's name, behind variables of the environment or
    torchrun, up to a `>`.
    """
    words = words[: words.index(">")] if ">" in words else words
    places = [place for place, word in enumerate(words) if re.fullmatch(r"([\w./-]+/)?dtml", word)]
    if places and (
        words[0] == "torchrun" or all(ASSIGNED.fullmatch(word) for word in words[: places[0]])
    ):
        yield words[places[0] + 1 :]


def command_at(words):
    """The command that words name, its path, and the words that are left for it."""
    command, path = COMMAND, []
    while hasattr(command, "commands"):
        assert words, "names a group of commands, and none of it"
        assert words[0] in command.commands, f"dtml {' '.join([*path, words[0]])} is no command"
        command, path, words = command.commands[words[0]], [*path, words[0]], words[1:]
    return command, " ".join(path), words


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_to_a_file_and_a_heading_that_are_there(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", TEXT[page]):
        path, _, anchor = link.partition("#")
        to = (ROOT / page).parent / path if path else ROOT / page
        assert to.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", to.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {
                re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings
            }, link


@pytest.mark.parametrize("page", PAGES)
def test_every_command_in_a_block_of_a_page_parses(page):
    for words in commands_of(page):
        command, path, rest = command_at(words)
        command.make_context(path, rest, resilient_parsing=False)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_option_named_in_a_sentence_is_there(page):
    for said in re.findall(r"`dtml ([a-z][^`]*)`", TEXT[page].replace("\n", " ")):
        words = said.split()
        if words[0] in COMMAND.commands and hasattr(COMMAND.commands[words[0]], "commands"):
            words = (
                words
                if len(words) > 1
                else [*words, next(iter(COMMAND.commands[words[0]].commands))]
            )
        command, path, rest = command_at([word.rstrip(",") for word in words])
        known = {name for option in command.params for name in option.opts}
        assert {word for word in rest if word.startswith("--")} <= known, f"dtml {path}: {said}"


@pytest.mark.parametrize("page", PAGES)
def test_every_benchmark_named_on_a_page_is_a_module(page):
    for name in re.findall(r"python -m benchmarks\.(\w+)", " ".join(TEXT[page].split())):
        assert (ROOT / "benchmarks" / f"{name}.py").exists(), name


def all_options(command):
    """The options of a command, or of every command of a group."""
    below = [all_options(each) for each in getattr(command, "commands", {}).values()]
    return {name for option in command.params for name in option.opts}.union(*below)


@pytest.mark.parametrize("page", PAGES)
def test_every_option_named_alone_is_of_some_command(page):
    assert set(re.findall(r"`(--[a-z][a-z0-9-]*)", TEXT[page])) <= all_options(COMMAND) | {"--help"}


def test_the_first_page_has_a_tree_of_every_room_and_of_no_other():
    tree = next(block for block in blocks_of("README.md") if block.startswith("flows/"))
    named, floor = set(), ""
    for line in tree.splitlines():
        name = line.split("/")[0].strip()
        if not line.startswith(" "):
            named.add(floor := name)
        elif "/" in line.split()[0]:
            named.add(f"{floor}/{name}")
        for file in re.findall(r"[\w]+\.py", line):
            assert (ROOT / floor / file).exists(), line
    floors = ("flows", "dtml", "db", "translation")
    rooms = {
        str(file.parent.relative_to(ROOT))
        for floor in floors
        for file in (ROOT / floor).glob("*/__init__.py")
    }
    assert named == rooms | {*floors, "tests", "benchmarks"}, "README.md, Read in this order"


def test_pages_name_every_market_and_the_store_s_every_view():
    for name in market_names():
        assert f"`{name}`" in TEXT["dtml/README.md"], name
    for name in views():
        assert f"`{name}`" in TEXT["db/README.md"], name


@pytest.mark.parametrize("page", ["README.md", "benchmarks/README.md"])
def test_a_page_of_figures_names_results_that_can_be_made(page):
    asked = re.findall(r'make results ONLY="?([\w -]+)', " ".join(TEXT[page].split()))
    assert {name for names in asked for name in names.split()} <= {each.name for each in RESULTS}


TABLES = {
    "": MarketFile,
    "index.": Index,
    "checks.": Checks,
    "trading.": Trading,
    "model.": ModelSettings,
    "columns.": Columns,
    "feed.": FeedAccess,
    "second_source.": SecondSource,
    "sessions.": Sessions,
    "constituents.": Listed,
    "constituents.symbols.": Constituent,
}


def test_the_page_of_markets_has_every_key_of_their_files_with_its_default():
    told = {}
    section = TEXT["dtml/README.md"].split("### Keys")[1].split("###")[0]
    for row in re.findall(r"^\| (`.*) \|$", section, re.MULTILINE):
        keys, _, default, meaning = (cell.strip() for cell in row.split(" |"))
        words = "Default: " in meaning
        told |= dict.fromkeys(re.findall(r"`([\w.]+)`", keys), None if words else default)
    fields = {
        f"{place}{name}": field
        for place, table in TABLES.items()
        for name, field in table.__pydantic_fields__.items()
        if f"{place}{name}." not in TABLES or name == "symbols"
    }
    assert set(told) == set(fields)
    for key, field in fields.items():
        if told[key] is None:  # it depends on other keys
            continue
        assert (told[key] == "required") == field.is_required(), key
        if isinstance(field.default, str | float | int) and field.default != "":
            assert told[key] == f"`{str(field.default).lower()}`", key


def test_the_page_of_contributing_names_files_that_are_there():
    paths = r"`((?:dtml|db|flows|tests|benchmarks)/[\w/.]+|[A-Z]+\.md|\w+\.(?:toml|txt))`"
    for name in set(re.findall(paths, TEXT["CONTRIBUTING.md"])) - {"home.toml"}:
        assert (ROOT / name).exists(), name
