"""Thirty honest users' ideas, which the audit must admit.

Those that are features lie several in a file, as a user's do: the audit compares each of them by
itself, and reads a file's market once for all of them.
"""

import re
from itertools import islice
from textwrap import indent

HEAD = """import numpy as np
import pandas as pd


def change(bars, count=1):
    return bars.close.pct_change(count, fill_method=None)


"""


def _file_of(features: dict[str, str], history: int | None = None) -> str:
    """A file of these features, each a function named after it."""
    told = f"HISTORY = {history}\n" if history else ""
    functions = [
        f"def {re.sub('[^a-z]', '_', name.lower())}(bars):\n{indent(body, '    ')}\n"
        for name, body in features.items()
    ]
    return HEAD + told + "\n\n".join(functions)


def _model(imports: str, model: str) -> str:
    return (
        f"{imports}\n\n{HEAD}"
        "FEATURES = {f'return_{k}': lambda bars, k=k: change(bars, k) for k in (1, 5, 20)}\n"
        f"MODEL = {model}\n"
    )


FEATURES = {
    "z-score": (
        "mean = bars.close.rolling(20).mean()\nreturn (bars.close - mean) / "
        "bars.close.rolling(20).std()"
    ),
    "skew": "return change(bars).rolling(60).skew()",
    "kurtosis": "return change(bars).rolling(60).kurt()",
    "MACD": (
        "line = bars.close.ewm(span=12).mean() - bars.close.ewm(span=26).mean()\n"
        "return (line - line.ewm(span=9).mean()) / bars.close"
    ),
    "RSI": (
        "moves = bars.close.diff()\n"
        "rises = moves.clip(lower=0).rolling(14).mean()\n"
        "falls = -moves.clip(upper=0).rolling(14).mean()\n"
        "return rises / (rises + falls)"
    ),
    "correlation with the market": (
        "moves = change(bars)\nreturn moves.rolling(60).corr(moves.mean(axis=1))"
    ),
    "days since the high": (
        "return bars.high.rolling(60).apply(lambda own: 59 - np.argmax(own), raw=True)"
    ),
    "year to date": (
        "first = bars.close.groupby(bars.close.index.year).transform('first')\nreturn bars.close / "
        "first - 1"
    ),
    "turnover share": "return bars.value.div(bars.value.sum(axis=1), axis=0)",
    "limit-up count": "return (change(bars) > 0.03).rolling(20).sum()",
    "gap": "return bars.open / bars.close.shift() - 1",
    "near the high": "return bars.close / bars.high.rolling(250).max() - 1",
    "beta": (
        "market = change(bars).mean(axis=1)\n"
        "return change(bars).rolling(120).cov(market).div(market.rolling(120).var(), axis=0)"
    ),
    "Amihud": "return (change(bars).abs() / bars.value).rolling(20).mean()",
    "place of the half year's return": "return change(bars, 120).rank(axis=1, pct=True)",
    "true range": (
        "before = bars.close.shift()\n"
        "high = np.maximum(bars.high, before)\n"
        "low = np.minimum(bars.low, before)\n"
        "return ((high - low) / bars.close).rolling(14).mean()"
    ),
    "month of the year": (
        "return change(bars, 5).mul(bars.close.index.month.isin([1, 12]), axis=0)"
    ),
    "turn of the month": "return change(bars).mul(bars.close.index.day < 4, axis=0)",
    "median price": "return bars.close.rolling(21).median() / bars.close",
    "tenths of volume": (
        "busy = bars.volume / bars.volume.rolling(20).mean()\nreturn busy.rank(axis=1, "
        "pct=True).mul(10).apply(np.ceil)"
    ),
}
OF_THE_LAST_ROW = {
    "streak, of the last row": (
        "up = bars.close.diff().tail(5) > 0\nreturn up.sum().where(bars.close.iloc[-1].notna())"
    ),
    "a slow mean, of the last row": (
        "slow = bars.close.ewm(span=200).mean()\nreturn slow.iloc[-1] / bars.close.iloc[-1]"
    ),
}
LONG = {"two years' return": "return change(bars, 500)"}

MODELS = {
    "logit": _model("from sklearn.linear_model import LogisticRegression", "LogisticRegression()"),
    "forest": _model(
        "from sklearn.ensemble import RandomForestRegressor",
        "RandomForestRegressor(5, max_depth=3, random_state=0)",
    ),
    "bagging": _model(
        "from sklearn.ensemble import BaggingRegressor\nfrom sklearn.linear_model import Ridge",
        "BaggingRegressor(Ridge(), 5, random_state=0)",
    ),
    "grid search": _model(
        "from sklearn.linear_model import Ridge\nfrom sklearn.model_selection import GridSearchCV",
        "GridSearchCV(Ridge(), {'alpha': [1, 100]}, cv=3)",
    ),
    "pipeline": _model(
        "from sklearn.linear_model import Ridge\n"
        "from sklearn.pipeline import make_pipeline\n"
        "from sklearn.preprocessing import StandardScaler",
        "make_pipeline(StandardScaler(), Ridge())",
    ),
    "neighbours": _model(
        "from sklearn.neighbors import KNeighborsRegressor", "KNeighborsRegressor(50)"
    ),
    "a torch module": _model("import torch", "torch.nn.Linear(3, 1)"),
}

FILES = {
    f"features, {part + 1}": _file_of(dict(islice(FEATURES.items(), part, None, 3)))
    for part in range(3)
}
FILES |= {"of the last row": _file_of(OF_THE_LAST_ROW), "long": _file_of(LONG, history=510)}
FILES |= MODELS
