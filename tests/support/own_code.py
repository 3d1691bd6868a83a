"""Users' files: attempts to look ahead, and honest features."""

LEAKS = {
    "the return to be predicted": "def f(bars):\n    return bars.close.shift(-1) / bars.close - 1",
    "the day to be predicted": "def f(bars):\n    return (bars.volume / "
    "bars.volume.rolling(20).mean()).shift(-1)",
    "scaling over the whole sample": "def f(bars):\n"
    "    change = bars.close.pct_change(5, fill_method=None)\n"
    "    return (change - change.mean()) / change.std()",
    "backward fill": "def f(bars):\n    return (bars.close / "
    "bars.close.rolling(20).mean()).bfill()",
    "centred average": "def f(bars):\n    return bars.close / bars.close.rolling(5, center=True, "
    "min_periods=1).mean()",
    "the market of the next day": "def f(bars):\n"
    "    change = bars.close.pct_change(fill_method=None)\n"
    "    return change.mul(change.mean(axis=1).shift(-1), axis=0)",
    "survivors": "def f(bars):\n    return (bars.close / bars.open).loc[:, "
    "bars.close.iloc[-1].notna()]",
    "the stocks that trade most later": "def f(bars):\n"
    "    volume = bars.volume.mean()\n"
    "    return (bars.close / bars.open).loc[:, volume >= volume.median()]",
    "the level of adjusted prices": "def f(bars):\n    return bars.close",
    "a rank in a stock's "
    "whole history": "def f(bars):\n    return (bars.high / bars.low).rank(pct=True)",
    "a trend fitted to the whole sample": "import numpy as np\n\n\ndef f(bars):\n"
    "    logs = np.log(bars.close)\n"
    "    def left(own):\n"
    "        own = own.dropna()\n"
    "        if own.empty:\n            return own\n"
    "        return own - np.poly1d(np.polyfit(range(len(own)), own, 1))(range(len(own)))\n\n"
    "    return logs.apply(left)",
    "a model that looks up the next close": "SEEN = []\n\n\ndef f(bars):\n"
    "    SEEN[:] = [bars.close]\n"
    "    return bars.close / bars.open\n\n\n"
    "class Model:\n"
    "    day = -40\n\n"
    "    def fit(self, features, outcome):\n"
    "        return self\n\n"
    "    def predict(self, features):\n"
    "        Model.day += 1\n"
    "        close = SEEN[0].iloc[Model.day :]\n"
    "        return (close.iloc[-1] / close.iloc[0]).to_numpy()[: len(features)]\n\n\n"
    "MODEL = Model",
}

HONEST = """
import numpy as np
import pandas as pd


def change(bars, count=1):
    return bars.close.pct_change(count, fill_method=None)


FEATURES = {f"return_{k}": lambda bars, k=k: change(bars, k) for k in (1, 5, 20, 120)}


def near_high(bars):
    return bars.close / bars.high.rolling(60).max() - 1


def off_low(bars):
    return bars.close / bars.low.rolling(60).min() - 1


def gap(bars):
    return bars.open / bars.close.shift() - 1


def session(bars):
    return bars.close / bars.open - 1


def volatility(bars):
    return change(bars).rolling(20).std()


def skewness(bars):
    return change(bars).rolling(60).skew()


def smooth(bars):
    return bars.close.ewm(span=10).mean() / bars.close


def filled(bars):
    return bars.close.ffill() / bars.close.ffill().rolling(10).mean()


def excess(bars):
    return change(bars).sub(change(bars).mean(axis=1), axis=0)


def beta(bars):
    market = change(bars).mean(axis=1)
    return change(bars).rolling(60).cov(market).div(market.rolling(60).var(), axis=0)


def busy(bars):
    return bars.volume / bars.volume.rolling(20).mean()


def illiquid(bars):
    return (change(bars).abs() / bars.value.where(bars.value > 0)).rolling(20).mean()


def signed(bars):
    return np.sign(change(bars)).rolling(10).sum()


def streak(bars):
    rises = {name: (own.diff().tail(5) > 0).sum() for name, own in bars.close.items()}
    return pd.Series(rises, dtype=float)


def place(bars):
    return change(bars, 20).rank(axis=1, pct=True)


def median(bars):
    return bars.close.rolling(21).median() / bars.close
"""
