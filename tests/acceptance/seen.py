"""What a user sees of the life in `life.py`: facts named by what they hold."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import closing, suppress
from html.parser import HTMLParser
from pathlib import Path
from sqlite3 import connect
from typing import Any

import numpy as np
import pandas as pd
from safetensors.numpy import load_file

from tests.acceptance.life import STORE

Fact = str | int | None | list[Any]  # a value, or of many: count, digest and, of numbers, `moments`
Facts = dict[str, dict[str, Fact]]

NIGHTS = ("as_of", "target", "session")  # columns by which a relation is cut
FEW = 12  # nights at most, or it stays whole
OF_A_RUN = {  # columns and keys
    "age",
    "code_version",
    "computed_by",
    "due",
    "minutes_after_prices",
    "path",
    "seconds",
    "taken_by",
    "tokens_per_second",
    "version_num",
}
LONG = 60  # characters above which a value is kept as a digest
NORMAL = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?( ?UTC|Z|[+-]\d\d:\d\d)?"), "MOMENT"),
    (re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{12,64}\b"), "HASH"),
    (re.compile(r"(?<=-\d\d, )[0-9a-f]{8}\b"), "ID"),
    (re.compile(r"-[0-9a-f]{8}\b"), "-ID"),
    (re.compile(r"\b[\d.,]+ (s|ms|min|MB|kB)\b"), "AMOUNT"),
    (re.compile(r"\b\d+ days late|(?<=as known on )\d{4}-\d\d-\d\d"), "DAYS"),
    (re.compile(r"/\S*/(?=(data|reports|demo|exported|acc\.toml)\b)"), ""),
    (re.compile(r"dtml \d[^<\"]*?threads?\b|dtml \d\S*, Python [^<\"]*"), "VERSIONS"),
)
MINUS = "\N{MINUS SIGN}"
NUMBER = re.compile(rf"[+\-{MINUS}]?(?:\d[\d,]*\.?\d*|\.\d+)")


def seen(folder: Path) -> Facts:
    """Return all facts of a life."""
    found = dict(of_store(folder / STORE))
    found |= {f"weights of {name}": of_weights(file) for name, file in weights(folder)}
    for file in sorted((folder / "reports").rglob("*.html")):
        found |= of_page(f"page {plain(file.stem)}", file.read_text(encoding="utf-8"))
    browsed = json.loads((folder / "browsed.json").read_text())
    for address, (status, body) in browsed.items():
        found[f"dashboard {plain(address)}"] = {"status": status}
        found |= of_page(f"dashboard {plain(address)}", body)
    for view in sorted((folder / "exported").glob("*/")):
        found[f"exported {view.name}"] = {"rows": len(pd.read_parquet(view, partitioning="hive"))}
    said = json.loads((folder / "said.json").read_text())
    for command, answer in said.items():
        found[f"dtml {command}"] = {"exit code": answer["code"]} | of_answer(answer["printed"])
    return found


def plain(text: str) -> str:
    """Return a text without what is of one run: moments, ids, hashes, places, versions."""
    for pattern, name in NORMAL:
        text = pattern.sub(name, text)
    return text


def fact(values: list[Any]) -> Fact:
    """Return one fact of values in their order: itself, if it is one and short, or a summary.

    Moments of numbers are their mean, standard deviation and slope: the mean product with numbers
    from -1 to 1, which changes where values change their places.
    """
    texts = [plain(each) if isinstance(each, str) else repr(each) for each in values]
    if len(texts) == 1 and len(texts[0]) <= LONG and not isinstance(values[0], float):
        return plain(values[0]) if isinstance(values[0], str) else values[0]
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
    numbers = [each for each in values if isinstance(each, float) and np.isfinite(each)]
    if not numbers:
        return [len(values), digest]
    return [len(values), digest, *moments(np.array(numbers))]


def moments(numbers: np.ndarray) -> list[float]:
    slope = numbers @ np.linspace(-1, 1, len(numbers)) / len(numbers)
    return [float(f"{each:.9g}") for each in (numbers.mean(), numbers.std(), slope)]


def of_store(file: Path) -> Iterator[tuple[str, dict[str, Fact]]]:
    """Yield the columns of each table and view, a night at a time where it has few."""
    with closing(connect(file)) as store:
        # The view metric has seconds of a run; its other figures are those of other views.
        relations = (
            "select type, name from sqlite_master "
            "where type in ('table', 'view') and name <> 'metric'"
        )
        symbols = dict(store.execute("select id, symbol from instrument").fetchall())
        for kind, name in sorted(store.execute(relations).fetchall()):
            frame = pd.read_sql_query(f"select * from {name}", store, dtype=object)
            for column in {"instrument_id", "source_id"} & set(frame):
                frame[column] = frame[column].map(symbols)
            frame = frame.map(lambda each: plain(each) if isinstance(each, str) else each)
            whole = [each for each in frame if not is_float(frame[each])]
            rest = [each for each in frame if each not in whole]
            frame = frame.sort_values([*whole, *rest], key=as_text)
            night = next((each for each in NIGHTS if each in frame), None)
            if night is None or not 1 < frame[night].nunique() <= FEW:
                yield f"{kind} {name}", of_frame(frame)
                continue
            for number, (day, rows) in enumerate(frame.groupby(night), 1):
                yield f"{kind} {name}, night {number} ({night} {day})", of_frame(rows)


def of_frame(frame: pd.DataFrame) -> dict[str, Fact]:
    values = ((name, value) for name in frame for value in frame[name])
    return {"rows": len(frame)} | of_leaves(
        leaf for name, value in values for leaf in leaves_of(value, name)
    )


def is_float(column: pd.Series) -> bool:
    return any(isinstance(each, float) for each in column)


def as_text(column: pd.Series) -> pd.Series:
    return column.map(lambda each: f"{each:.6f}" if isinstance(each, float) else str(each))


def weights(folder: Path) -> Iterator[tuple[str, Path]]:
    for file in sorted(folder.glob("data/models/*.safetensors")):
        yield plain(file.stem), file
    for file in sorted(folder.glob("data/translation/*/*.safetensors")):
        yield f"translator {file.parent.name}", file


def of_weights(file: Path) -> dict[str, Fact]:
    """Return the shape, SHA-256 and moments of each tensor."""
    tensors = load_file(file)
    found: dict[str, Fact] = {}
    for name in sorted(tensors):
        tensor = np.ascontiguousarray(tensors[name])
        digest = hashlib.sha256(tensor.tobytes()).hexdigest()[:16]
        finite = tensor[np.isfinite(tensor)].astype(float)
        found[name] = [str(list(tensor.shape)), digest, *(moments(finite) if finite.size else [])]
    return found


class Sections(HTMLParser):
    """The words of a page by the heading that they stand below; not of drawings and scripts."""

    SKIPPED = ("script", "style", "svg", "nav", "footer")

    def __init__(self, source: str) -> None:
        super().__init__()
        self.words: dict[str, list[str]] = {}
        self.inside: list[str] = []
        self.heading = "head"
        self.feed(source)

    def handle_starttag(self, tag: str, _: object) -> None:
        if tag in self.SKIPPED or re.fullmatch("h[1-4]", tag):
            self.inside.append(tag)
            self.heading = "" if tag[0] == "h" else self.heading

    def handle_endtag(self, tag: str) -> None:
        if self.inside[-1:] == [tag]:
            self.inside.pop()

    def handle_data(self, data: str) -> None:
        if set(self.inside) & set(self.SKIPPED):
            return
        if self.inside:
            self.heading = " ".join(f"{self.heading} {data}".split())
        else:
            self.words.setdefault(self.heading, []).append(data)


def of_page(name: str, source: str) -> Facts:
    """Return the figures of each section of a page."""
    found: Facts = {}
    for heading, words in Sections(source).words.items():
        figures = figures_of(" ".join(words))
        if figures and "Receipt" not in heading:
            found[f"{name}, {plain(heading)}"] = {"figures": fact(figures)}
    return found


def figures_of(text: str) -> list[float]:
    found = NUMBER.findall(plain(" ".join(text.split())))
    return [float(each.replace(MINUS, "-").replace(",", "").rstrip(".")) for each in found]


def of_answer(printed: str) -> dict[str, Fact]:
    """Return the leaves of a JSON answer by their paths, or the figures of another answer."""
    try:
        answer = json.loads(printed)
    except ValueError:
        return {"figures": fact(figures_of(printed))} if printed.strip() else {}
    return of_leaves(leaves_of(answer, ""))


def of_leaves(leaves: Iterator[tuple[str, Any]]) -> dict[str, Fact]:
    """Return a fact for each path, of all the values at it."""
    found: dict[str, list[Any]] = {}
    for path, value in leaves:
        found.setdefault(path, []).append(value)
    kept = (path for path in found if not set(path.split(".")) & OF_A_RUN)
    return {path: fact(found[path]) for path in kept}


def leaves_of(answer: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the values within a JSON value, also within a text that is one, and their paths."""
    if isinstance(answer, str) and answer[:1] in ("{", "["):
        with suppress(ValueError):
            answer = json.loads(answer)
    if isinstance(answer, dict):
        for key, value in answer.items():
            yield from leaves_of(value, f"{path}.{key}" if path else key)
    elif isinstance(answer, list):
        for value in answer:
            yield from leaves_of(value, path)
    else:
        yield path, answer
