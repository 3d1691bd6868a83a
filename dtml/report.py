"""Tables to one self-contained HTML page: no script, no request, readable in ten years."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from dtml.rules import NAIVE_RULES

WIDTH, HEIGHT, MARGIN = 720, 220, 40
COLOURS = ("#2f6fde", "#8a6d1a", "#a34cae", "#5d6f7e")


def night_report(
    *,
    title: str,
    night: Mapping[str, Any],
    predictions: pd.DataFrame,
    scores: pd.DataFrame,
    refused: pd.DataFrame,
    refused_sessions: int,
    receipt: Mapping[str, object],
) -> str:
    """Render a night.

    `night` is its row; `predictions` has `symbol, probability, spread`; `scores` has the running scores of every night,
    `target, protocol, predictor, nights, n, acc, acc_low, ...`; `refused` has `symbol, session, reason, value`;
    `receipt` says what made the predictions.
    """
    ordered = predictions.sort_values(["probability", "symbol"], ascending=[False, True])
    ordered = ordered.assign(call=ordered["probability"].map(lambda p: "rise" if p > 0.5 else "fall"))
    latest = scores[scores["target"] == scores["target"].max()]
    return _template().render(
        title=title,
        night=night,
        predictions=ordered.to_dict("records"),
        scores=latest.sort_values(["protocol", "predictor"]).to_dict("records"),
        scored_until=f"{scores['target'].max():%Y-%m-%d}" if len(scores) else None,
        rules=NAIVE_RULES,
        chart=running_chart(scores[scores["protocol"] == "all"], "acc", "running ACC, all stock-days"),
        refused=refused.to_dict("records"),
        refused_sessions=refused_sessions,
        receipt=receipt,
    )


def running_chart(scores: pd.DataFrame, column: str, title: str) -> Markup:
    """An inline SVG with one line a predictor over the nights, and the model's 95 % band; empty below two nights."""
    nights = sorted(scores["target"].unique())
    if len(nights) < 2:
        return Markup()
    spots = {night: MARGIN + (WIDTH - 2 * MARGIN) * i / (len(nights) - 1) for i, night in enumerate(nights)}
    shown = scores[[column, f"{column}_low", f"{column}_high"]]
    bottom, top = float(np.nanmin(shown.to_numpy())), float(np.nanmax(shown.to_numpy()))
    scale = (HEIGHT - 2 * MARGIN) / max(top - bottom, 1e-9)

    def path(rows: pd.DataFrame, name: str) -> str:
        kept = rows.dropna(subset=[name]).sort_values("target")
        return " ".join(
            f"{spots[night]:.1f},{HEIGHT - MARGIN - (value - bottom) * scale:.1f}"
            for night, value in zip(kept["target"], kept[name], strict=True)
        )

    parts = [_axis(bottom, top, nights)]
    for i, (predictor, rows) in enumerate(scores.groupby("predictor", sort=True)):
        if predictor == "dtml":
            band = path(rows, f"{column}_low") + " " + " ".join(reversed(path(rows, f"{column}_high").split()))
            parts.append(f'<polygon points="{band}" fill="{COLOURS[i]}" fill-opacity="0.15"/>')
        parts.append(f'<polyline points="{path(rows, column)}" fill="none" stroke="{COLOURS[i]}" stroke-width="2"/>')
        parts.append(f'<text x="{MARGIN + 150 * i}" y="16" style="fill:{COLOURS[i]}">{escape(predictor)}</text>')
    return Markup(  # noqa: S704 - every part above is a number or escaped
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
        f'<p class="note">{escape(title)}, with the 95 % band of dtml.</p>'
    )


def _axis(bottom: float, top: float, nights: list[pd.Timestamp]) -> str:
    floor = HEIGHT - MARGIN
    return (
        f'<line x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{floor}" y2="{floor}" stroke="currentColor"/>'
        f'<text x="2" y="{floor}">{bottom:.2f}</text><text x="2" y="{MARGIN}">{top:.2f}</text>'
        f'<text x="{MARGIN}" y="{HEIGHT - 12}">{nights[0]:%Y-%m-%d}</text>'
        f'<text x="{WIDTH - MARGIN}" y="{HEIGHT - 12}" text-anchor="end">{nights[-1]:%Y-%m-%d}</text>'
    )


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["share"] = lambda value: "-" if pd.isna(value) else f"{100 * value:.1f} %"
    environment.filters["correlation"] = lambda value: "-" if pd.isna(value) else f"{value:+.3f}"
    return environment.get_template("report.html")
