"""The paper's benchmark for people: a sentence, the README's table and one self-contained HTML page.

`scores` and `members` have the columns of db's tables `benchmark_score` and `benchmark_member`, `benchmark` those of a
row of `benchmark`. What is missing, NaN or None, is printed as "-".
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from dtml.rules import NAIVE_RULES

Row = Mapping[str, Any]  # a row of scores

MODEL = "dtml"
PROTOCOLS = {"paper": "the paper's labels", "all": "all stock-days"}
LABELS = {
    "paper": "only moves from +0.55 % (a rise) and to -0.5 % (a fall)",
    "all": "every move counts: a rise is a move above 0",
}
COLUMNS = (
    "model",
    "ACC, mean ± sd (published)",
    "ACC ensemble [95 %]",
    "gain over rule [95 %]",
    "MCC, mean ± sd (published)",
    "MCC ensemble [95 %]",
    "within-day AUC [95 %]",
    "same call",
)
STRIP_HEIGHT, LANE = 44, 6  # of a predictor's dots; the most that two configurations lie apart, in pixels
SIDE = 180  # of a calibration curve's square, in pixels


def verdict(benchmark: Row, scores: pd.DataFrame) -> str:
    """Say in one sentence whether DTML's ensemble beats the rule, by the paired gain in ACC, in each protocol."""
    rows = {row["protocol"]: row for row in score_rows(scores) if row["predictor"] == MODEL}
    if not rows:
        return f"DTML is not among the predictors on {benchmark['market']}."
    clauses = [f"on {words} DTML {_compared(rows[name])}" for name, words in PROTOCOLS.items() if name in rows]
    return (
        f"Against the naive rule that was best on the training span, {benchmark['best_rule']}, over "
        f"{max(row['days'] for row in rows.values())} test days of {benchmark['market']}: "
        f"{'; '.join(clauses)}."
    )


def _compared(row: Row) -> str:
    found = f"(ACC gain {with_interval(row, 'acc_gain', signed=True)})"
    if pd.isna(row["acc_gain_low"]) or pd.isna(row["acc_gain_high"]):
        return f"cannot be compared with it {found}: there is no interval"
    if row["acc_gain_low"] > 0:
        return f"beats it {found}"
    return f"is beaten by it {found}" if row["acc_gain_high"] < 0 else f"cannot be told from it {found}"


def figure(value: float | None, digits: int = 4, *, signed: bool = False) -> str:
    """A number as .5744, -.0121 or, signed, +.0210; of what rounds to 0, only signed numbers keep their sign."""
    if value is None or pd.isna(value):
        return "-"
    size = f"{abs(value):.{digits}f}"
    shows = signed or float(size) != 0
    sign = "-" if value < 0 and shows else "+" if value > 0 and signed else ""
    return sign + (size[1:] if size.startswith("0.") else size)


def interval(row: Row, name: str, *, signed: bool = False) -> str:
    """The 95 % interval of a figure, [.512, .561]; nothing where there is none."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return (
        "" if pd.isna(low) or pd.isna(high) else f"[{figure(low, 3, signed=signed)}, {figure(high, 3, signed=signed)}]"
    )


def with_interval(row: Row, name: str, *, signed: bool = False) -> str:
    """A figure and its interval: .5353 [.512, .561]."""
    return f"{figure(row[name], signed=signed)} {interval(row, name, signed=signed)}".strip()


def with_spread(row: Row, mean: str, spread: str) -> str:
    """A mean and its standard deviation: .5744 ± .0194; a single seed has none."""
    return figure(row[mean]) if pd.isna(row[spread]) else f"{figure(row[mean])} ± {figure(row[spread])}"


def percent(value: float | None) -> str:
    """A share as 97.3 %."""
    return "-" if value is None or pd.isna(value) else f"{100 * value:.1f} %"


def score_rows(scores: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of `scores` in their order, but models before naive rules."""
    rows = [{str(name): value for name, value in row.items()} for row in scores.to_dict("records")]
    return sorted(rows, key=lambda row: bool(row["is_rule"]))


def result_cells(benchmark: Row, row: Row) -> tuple[tuple[str, str], ...]:
    """A row of results below `COLUMNS`; each cell in two parts, for one line or two, the second one maybe empty."""
    is_best = row["predictor"] == benchmark["best_rule"]

    def over_seeds(name: str) -> tuple[str, str]:
        own = with_spread(row, f"{name}_mean", f"{name}_sd")
        published = with_spread(row, f"published_{name}", f"published_{name}_sd")
        return own, "" if own == published == "-" else f"({published})"

    return (
        (row["predictor"], "(best rule)" if is_best else ""),
        over_seeds("acc"),
        (figure(row["acc"]), interval(row, "acc")),
        (figure(row["acc_gain"], signed=True), interval(row, "acc_gain", signed=True)),
        over_seeds("mcc"),
        (figure(row["mcc"]), interval(row, "mcc")),
        (figure(row["auc"]), interval(row, "auc")),
        (percent(row["same_call"]), ""),
    )


def sample(row: Row) -> str:
    """How much was scored: 252 days, 7,398 stock-days, 3,788 of them rises."""
    return f"{row['days']:,} days, {row['n']:,} stock-days, {row['rises']:,} of them rises"


def readme_table(benchmark: Row, scores: pd.DataFrame) -> str:
    """The results in Markdown: for each protocol a line on the test span and a table, naive rules last."""
    span = f"{day(benchmark['test_first'])} to {day(benchmark['test_last'])}, {benchmark['stocks']} stocks"
    blocks = []
    for protocol, words in PROTOCOLS.items():
        rows = [row for row in score_rows(scores) if row["protocol"] == protocol]
        if rows:
            lines = [f"**{benchmark['market']}, {words}**: {span}, {sample(rows[0])}.", "", _markdown(COLUMNS)]
            lines += [_markdown("---" for _ in COLUMNS)]
            lines += [_markdown(" ".join(cell).strip() for cell in result_cells(benchmark, row)) for row in rows]
            blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _markdown(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


@dataclass(frozen=True)
class Axis:
    """A linear scale from `low` and `high` to the places `start` and `end`."""

    low: float
    high: float
    start: float = 0.0
    end: float = 100.0

    @classmethod
    def over(cls, values: Iterable[float], start: float = 0.0, end: float = 100.0) -> "Axis":
        """The scale that holds all values with a margin; 0 to 1 without values."""
        kept = [float(value) for value in values if not pd.isna(value)]
        if not kept:
            return cls(0.0, 1.0, start, end)
        margin = max(0.08 * (max(kept) - min(kept)), 0.002)
        return cls(min(kept) - margin, max(kept) + margin, start, end)

    def at(self, value: float) -> str:
        """Where a value lies."""
        return f"{self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low):.2f}".rstrip(
            "0"
        ).rstrip(".")

    @property
    def ticks(self) -> list[tuple[str, str]]:
        """Places and labels of two to eight round numbers within."""
        rough = (self.high - self.low) / 7
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
        digits = max(1, -math.floor(math.log10(step) + 1e-9))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [(self.at(step * i), figure(step * i, digits)) for i in range(first, last + 1)]


def forest(rows: list[dict[str, Any]]) -> Axis:
    """The scale of a protocol's ensemble ACC, their intervals and the published figures."""
    return Axis.over(row[name] for row in rows for name in ("acc", "acc_low", "acc_high", "published_acc"))


def strips(members: pd.DataFrame) -> list[dict[str, Any]]:
    """Each predictor's members as dots `(acc, height, kept, words)`, a lane a configuration, and what they span."""
    return [{"predictor": name, **_strip(rows)} for name, rows in members.groupby("predictor", sort=False)]


def _strip(rows: pd.DataFrame) -> dict[str, Any]:
    lanes = {number: lane for lane, number in enumerate(sorted(rows["configuration"].unique()))}
    apart = min(LANE, STRIP_HEIGHT / max(len(lanes) - 1, 1))
    top = (STRIP_HEIGHT - apart * (len(lanes) - 1)) / 2
    kept = rows[rows["kept"].astype(bool)]
    return {
        "dots": [
            (acc, f"{top + apart * lanes[number]:.0f}", bool(is_kept), f"seed {seed}: {figure(acc)}")
            for acc, number, is_kept, seed in rows[["acc", "configuration", "kept", "seed"]].itertuples(index=False)
            if not pd.isna(acc)
        ],
        "configurations": len(lanes),
        "members": len(rows),
        "over_all": (rows["acc"].min(), rows["acc"].median(), rows["acc"].max()),
        "settings": ", ".join(f"{name} {value}" for name, value in kept["settings"].iloc[0].items())
        if len(kept)
        else "-",
        "kept": {name: _ends(kept[name]) for name in ("acc", "validation_acc", "best_epoch")},
    }


def _ends(values: "pd.Series[float]") -> tuple[float, float]:
    numbers = pd.to_numeric(values).astype(float)
    return float(numbers.min()), float(numbers.max())


def calibration_axes(curves: Mapping[str, pd.DataFrame]) -> tuple[Axis, Axis]:
    """One scale for all curves, across and upwards, so that they compare and the diagonal is calibration."""
    values = [
        value for curve in curves.values() for name in ("mean_probability", "share_risen") for value in curve[name]
    ]
    return Axis.over(values, 30, SIDE - 6), Axis.over(values, SIDE - 20, 6)


def benchmark_page(
    *,
    benchmark: Row,
    scores: pd.DataFrame,
    members: pd.DataFrame,
    curves: Mapping[str, pd.DataFrame] | None = None,
) -> str:
    """Render a benchmark as one HTML file without scripts or requests.

    `curves` maps a predictor to rows `bin_low, bin_high, mean_probability, share_risen, n`.
    """
    rows = score_rows(scores)
    protocols = {name: [row for row in rows if row["protocol"] == name] for name in PROTOCOLS}
    curves = {name: curve.dropna(subset=["mean_probability", "share_risen"]) for name, curve in (curves or {}).items()}
    return (
        _environment()
        .get_template("benchmark_report.html")
        .render(
            benchmark=benchmark,
            verdict=verdict(benchmark, scores),
            protocols={name: found for name, found in protocols.items() if found},
            axes={name: forest(found) for name, found in protocols.items()},
            strips=strips(members),
            strip_axis=Axis.over(members["acc"]),
            curves={name: curve.to_dict("records") for name, curve in curves.items()},
            calibration=calibration_axes(curves),
            most={name: curve["n"].max() for name, curve in curves.items()},
            seeds=_ends(scores["seeds"])[1],
            config=json.dumps(benchmark["config"], indent=2, ensure_ascii=False, default=str),
        )
    )


def day(value: Any) -> str:
    """A date as 2016-12-30, whether it came as a date, a timestamp or words."""
    return f"{value:%Y-%m-%d}" if hasattr(value, "strftime") else str(value)


def moment(value: Any) -> str:
    """A time as 2026-01-20 08:12+00:00, whether it came as a time or as words."""
    return value.isoformat(sep=" ", timespec="minutes") if hasattr(value, "hour") else str(value)


def duration(seconds: float | None) -> str:
    """Seconds as 2 h 05 min, 3 min 20 s or 41 s."""
    if seconds is None or pd.isna(seconds):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for function in (day, duration, figure, interval, moment, percent, sample, with_interval, with_spread):
        environment.filters[function.__name__] = function
    environment.filters["count"] = lambda value: "-" if pd.isna(value) else f"{value:,.0f}"
    environment.tests["missing"] = lambda value: bool(pd.isna(value))
    environment.globals.update(
        words=PROTOCOLS, labels=LABELS, rules=NAIVE_RULES, model=MODEL, strip_height=STRIP_HEIGHT, side=SIDE
    )
    return environment
