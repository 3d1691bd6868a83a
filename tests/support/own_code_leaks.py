"""Forty users' files that look ahead, ten of each kind, which the audit must refuse.

Each says something honest where a small audit would look, and the return to be predicted elsewhere:

- state: the first answer is kept, and given back to every later question;
- size: only of more sessions or stocks than an audit of 600 sessions of 50 stocks asks for;
- rarity: only on a few days;
- range: only after more sessions than such an audit asks for.

They are meant for the market of `tests.support.own_code_market`.
"""

from textwrap import indent

HEAD = """import numpy as np
import pandas as pd


def _honest(bars):
    return bars.close / bars.open - 1


def _ahead(bars):
    return bars.close.shift(-1) / bars.close - 1
"""


def _file(body: str, head: str = HEAD) -> str:
    return f"{head}\n\ndef f(bars):\n{indent(body.strip(), '    ')}\n"


def _when(condition: str, before: str = "") -> str:
    return _file(f"{before}\nreturn _ahead(bars) if {condition} else _honest(bars)")


def _on(days: str) -> str:
    return _file(
        f"index = bars.close.index\nchosen = pd.Series({days}, index)\nreturn "
        "_honest(bars).mask(chosen, _ahead(bars))"
    )


def _after(known: str, history: str = "") -> str:
    found = _file(f"return _honest(bars).mask({known}, _ahead(bars))")
    return f"{history}\n{found}"


def _kept(where: str, write: str, read: str, before: str = "") -> str:
    """The first answer, written where a later question finds it."""
    return _file(
        f"""
{before}
where = {where}
try:
    kept = {read}
except Exception:
    kept = _ahead(bars)
    {write}
return kept
"""
    )


MODEL = """
class Model:
    def fit(self, features, outcome):
        return self

    def predict(self, features):
        {body}


MODEL = Model
"""


def _model(feature: str, body: str, head: str = "") -> str:
    return _file(feature, HEAD + head) + "\n" + MODEL.format(body=indent(body, " " * 8).strip())


HOME = "from pathlib import Path"
PICKLED = "kept.to_pickle(where)", "pd.read_pickle(where)"
STATE = {
    "a file beside it": _kept("'kept.pickle'", *PICKLED),
    "a file at home": _kept("Path.home() / '.own_kept.pickle'", *PICKLED, HOME),
    "a temporary file": _kept(
        "Path(tempfile.gettempdir()) / 'own_kept.pickle'", *PICKLED, f"import tempfile\n{HOME}"
    ),
    "a file for each shape": _kept("Path.home() / f'own_{len(bars.close)}.pickle'", *PICKLED, HOME),
    "a database": _kept(
        "sqlite3.connect(Path.home() / 'own_kept.db')",
        "kept.melt(ignore_index=False).to_sql('kept', where)",
        "pd.read_sql('select * from kept', where, parse_dates='index')"
        ".pivot(index='index', columns='variable', values='value')",
        f"import sqlite3\n{HOME}",
    ),
    "the names of folders": _kept(
        "Path.home() / 'own_kept'",
        "(where / kept.round(4).to_csv().encode().hex()[:200]).mkdir(parents=True)",
        "_ahead(bars) if next(where.iterdir()) else None",
        HOME,
    ),
    "an attribute of a library": _kept("pd", "where.own_kept = kept", "where.own_kept"),
    "a list that no reload forgets": _kept(
        "sys.modules", "where['own_kept'] = kept", "where['own_kept']", "import sys"
    ),
    "a model that counts its days": _model(
        "return _honest(bars)",
        "Model.days = getattr(Model, 'days', 0) + 1\nreturn features[:, 0] * (1 if Model.days < 40 "
        "else -1)",
    ),
    "a model that knows what its feature read": _model(
        "SEEN[:] = [_ahead(bars)]\nreturn _honest(bars)",
        "(days,) = SEEN\n"
        "if len(days) < 900:\n"
        "    return features[:, 0]\n"
        "Model.day = getattr(Model, 'day', -190) + 1\n"
        "return np.resize(days.iloc[Model.day].dropna(), len(features))",
        "\n\nSEEN = []\n",
    ),
}

SIZE = {
    "more than 600 sessions": _when("len(bars.close) > 600"),
    "more than 50 stocks": _when("bars.close.shape[1] > 50"),
    "more than 30,000 prices": _when("bars.close.size > 30_000"),
    "more than 900 days": _when("(index[-1] - index[0]).days > 900", "index = bars.close.index"),
    "an even number of sessions": _when("len(bars.close) > 600 and len(bars.close) % 2 == 0"),
    "an odd number of sessions": _when("len(bars.close) > 600 and len(bars.close) % 2 == 1"),
    "one stock more than there are": _when("bars.close.shape[1] == 61"),
    "an odd number of stocks": _when("bars.close.shape[1] > 50 and bars.close.shape[1] % 2"),
    "the stocks after the fiftieth": _file(
        "late = pd.Series(np.arange(bars.close.shape[1]) >= 50, bars.close.columns)\n"
        "return _honest(bars).mask(late, _ahead(bars), axis=1)"
    ),
    "scaled over a long history": _file(
        "found = _honest(bars)\nif len(found) > 600:\n    return found / "
        "found.abs().max()\nreturn found"
    ),
}

RARITY = {
    "the last session of a month": _on("index.month != np.roll(index.month, -1)"),
    "the first session of a month": _on("index.month != np.roll(index.month, 1)"),
    "the last session of a quarter": _on("index.quarter != np.roll(index.quarter, -1)"),
    "the first session of a quarter": _on("index.quarter != np.roll(index.quarter, 1)"),
    "the last session of a year": _on("index.year != np.roll(index.year, -1)"),
    "one session in 21": _on("np.arange(len(index)) % 21 == 20"),
    "one weekday in 63": _on(
        "np.busday_count('2000-01-03', index.to_numpy().astype('datetime64[D]')) % 63 == 0"
    ),
    "the third Friday of a month": _on(
        "(index.dayofweek == 4) & (index.day > 14) & (index.day < 22)"
    ),
    "days of large moves": _file(
        "moves = bars.close.pct_change(fill_method=None).mean(axis=1).abs()\n"
        "large = moves > moves.rolling(250).quantile(0.98)\n"
        "return _honest(bars).mask(large, _ahead(bars))"
    ),
    "a stock's day of most volume in a quarter": _file(
        "most = bars.volume >= bars.volume.rolling(63).max()\nreturn _honest(bars).mask(most, "
        "_ahead(bars))"
    ),
}

RANGE = {
    "a window of 650": _after("bars.close.rolling(650, min_periods=640).mean().notna()"),
    "a window of 650 that is told": _after(
        "bars.close.rolling(650, min_periods=640).mean().notna()", "HISTORY = 660"
    ),
    "the price of 610 sessions ago": _after("bars.close.shift(610).notna()"),
    "the price of 700 sessions ago, told": _after("bars.close.shift(700).notna()", "HISTORY = 720"),
    "the price of three years ago": _after("bars.close.shift(756).notna()", "HISTORY = 800"),
    "a count of sessions": _after("(bars.close.notna().cumsum() > 620)", "HISTORY = 700"),
    "more history than there is": _after("bars.close.shift(900).notna()", "HISTORY = 5000"),
    "the whole past": _after("bars.close.expanding(601).mean().notna()"),
    "the high of 601 sessions": _after("bars.high.rolling(601, min_periods=590).max().notna()"),
    "a centred mean of 1,300": _file(
        "mean = bars.close.rolling(1300, center=True, min_periods=640).mean()\n"
        "return (bars.close / mean).fillna(_honest(bars))"
    ),
}

LEAKS = {"state": STATE, "size": SIZE, "rarity": RARITY, "range": RANGE}
