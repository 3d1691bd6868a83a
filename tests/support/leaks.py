"""The leaks that the look-ahead audit must catch: dishonest pipelines and dishonest ranking paths.

Each overrides one step of the honest pipeline (`dtml.lookahead.pipeline`) or path
(`dtml.lookahead.ranks`) with a mistake found in practice.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from dtml.checkpoints import Ensemble
from dtml.features import FEATURES
from dtml.inference import member_probabilities
from dtml.lookahead.pipeline import ADJUSTED_TOO, CPU, NEVER, History, Pipeline
from dtml.lookahead.ranks import fit_honestly, with_known_outcomes
from dtml.ranking.panel import ranked
from dtml.ranking.rankers import VALIDATION_DAYS, Rankers, RankersConfig, slope_of
from dtml.ranking.walk import History as Ranked
from dtml.windows import Windows

LATER = 5  # sessions by which the outcomes of a leak begin later than the rankers are told


class Leak(Pipeline):
    """A dishonest pipeline: the docstring names its mistake, the overridden step makes it."""


class LabelInFeatures(Leak):
    """The return to be predicted is among the features.

    A shift by -1 that was meant for the label, but is applied to the inputs too, does this.
    """

    def windows(self, history: History) -> Windows:
        windows = super().windows(history)
        return _with_feature(windows, "z_adj_close", windows.movement.nan_to_num())


class FullSampleScaling(Leak):
    """Features are standardised over the whole history, later sessions included."""

    def windows(self, history: History) -> Windows:
        windows = super().windows(history)
        rows = windows.rows
        deviation = rows.std(dim=0).clamp(min=1e-6)
        centred = rows - rows.mean(dim=0)
        return replace(windows, rows=centred / deviation)


class BackwardFill(Leak):
    """Missing bars take the values of the next one.

    A `bfill` after an `ffill`, to fill the last gaps, makes this mistake.
    """

    def windows(self, history: History) -> Windows:
        values = [*ADJUSTED_TOO, "volume"]
        wide = history.bars.pivot(index="session", columns="symbol", values=values)
        filled = wide.bfill().stack("symbol", future_stack=True)
        bars = filled.dropna(how="all").reset_index()
        return super().windows(replace(history, bars=bars))


class LabelledRowsOnly(Leak):
    """Only stock-days with a large return are predicted.

    They are those of the paper's labels, which are known a day later.
    """

    def predict(self, ensemble: Ensemble, windows: Windows) -> pd.DataFrame:
        labelled = windows.labelled("published").numpy()
        return super().predict(ensemble, windows.only(labelled))


class TargetDayInWindow(Leak):
    """A window ends with the session to be predicted: off by one, the most common mistake."""

    def windows(self, history: History) -> Windows:
        windows = super().windows(history)
        return replace(windows.days(slice(0, -1)), rows=windows.rows[1:])


class TargetDayOfIndex(Leak):
    """The index is a session ahead of the stocks.

    Its file carries the date on which it was published.
    """

    def windows(self, history: History) -> Windows:
        windows = super().windows(history)
        rows = windows.rows[:-1].clone()
        rows[:, -1] = windows.rows[1:, -1]
        return replace(windows.days(slice(0, -1)), rows=rows)


class CentredAverage(Leak):
    """Prices are smoothed by a centred average of five sessions.

    Any filter that runs over a whole series makes this mistake.
    """

    def windows(self, history: History) -> Windows:
        prices = history.bars.groupby("symbol")[ADJUSTED_TOO]
        smooth = prices.transform(lambda price: price.rolling(5, center=True, min_periods=1).mean())
        bars = history.bars.assign(**smooth)
        return super().windows(replace(history, bars=bars))


class TodaysConstituents(Leak):
    """Today's constituents are taken for the constituents of every day.

    This is survivorship bias from a list.
    """

    def windows(self, history: History) -> Windows:
        constituents = []
        for stay in history.market.constituents:
            # Who has left is not in today's list; who is in it counts as a member since ever.
            since = None if stay.until is None else NEVER
            constituents.append(replace(stay, since=since, until=None))
        market = replace(history.market, constituents=tuple(constituents))
        return super().windows(replace(history, market=market))


class SurvivorsOnly(Leak):
    """Stocks without a bar in the last session are dropped from all sessions.

    This is survivorship bias from `dropna`.
    """

    def windows(self, history: History) -> Windows:
        bars = history.bars
        is_last = bars["session"] == bars["session"].max()
        survivors = bars.loc[is_last, "symbol"]
        is_kept = bars["symbol"].isin([*survivors, history.market.index.symbol])
        return super().windows(replace(history, bars=bars[is_kept]))


class ValidationOverTest(Leak):
    """The epoch is chosen on the days that are then predicted.

    Training scripts without a third split make this mistake.
    """

    def spans(self, windows: Windows, as_of: pd.Timestamp) -> tuple[Windows, Windows]:
        train, validation = super().spans(windows, as_of)
        later = windows.between(first=validation.target[0])
        return train, later.days(slice(0, 2 * len(validation)))


class LongerLabels(Leak):
    """Labels are returns over five sessions, and the split is still that of returns over one."""

    def spans(self, windows: Windows, as_of: pd.Timestamp) -> tuple[Windows, Windows]:
        # Four days of 0 are appended, so that the last days have five sessions too.
        daily = torch.nn.functional.pad(windows.movement.nan_to_num(), (0, 0, 0, 4))
        of_five_sessions = daily.unfold(0, 5, 1).sum(dim=-1)
        return super().spans(replace(windows, movement=of_five_sessions), as_of)


class ShuffledSplit(Leak):
    """Days are split at random, later ones included.

    `train_test_split` does so by default (shuffle=True).
    """

    def spans(self, windows: Windows, as_of: pd.Timestamp) -> tuple[Windows, Windows]:  # noqa: ARG002 - the leak
        # A day whose movements are unknown is left out of its span, as it has no label.
        generator = torch.Generator().manual_seed(0)
        chosen = torch.rand(len(windows), 1, generator=generator) < 0.7
        train = windows.movement.masked_fill(~chosen, torch.nan)
        validation = windows.movement.masked_fill(chosen, torch.nan)
        return replace(windows, movement=train), replace(windows, movement=validation)


class MemberChosenOnTest(Leak):
    """The seed is chosen that does best on the days on which it is then tested.

    To report "the best of ten runs" is this mistake.
    """

    def model(self, windows: Windows, as_of: pd.Timestamp) -> Ensemble:
        ensemble = super().model(windows, as_of)
        tested = windows.between(first=as_of + pd.Timedelta(1, "D"))
        probability = member_probabilities(ensemble, tested, CPU)  # [members days stocks], of rises
        counted = tested.labelled("all")
        # The probability that each member gave to what happened.
        of_outcome = torch.where(tested.rises(), probability, 1 - probability)
        likelihood = of_outcome[:, counted].log().sum(dim=1)
        best = int(likelihood.argmax())
        only = slice(best, best + 1)
        return replace(
            ensemble,
            seeds=ensemble.seeds[only],
            weights={name: weight[only] for name, weight in ensemble.weights.items()},
        )


class LaterCheckpoint(Leak):
    """The newest model serves every night, those before its training too."""

    def model(self, windows: Windows, as_of: pd.Timestamp) -> Ensemble:  # noqa: ARG002 - the leak
        return super().model(windows, windows.as_of[windows.observed.any(dim=1).numpy()][-1])


class AdjustmentAsFeature(Leak):
    """The adjusted close divided by the close is among the features.

    It reveals every dividend that was paid later.
    """

    def windows(self, history: History) -> Windows:
        windows = super().windows(history)
        ratio = history.bars["adj_close"] / history.bars["close"]
        wide = history.bars.assign(ratio=ratio).pivot(
            index="session", columns="symbol", values="ratio"
        )
        of_windows = wide.reindex(index=windows.as_of, columns=list(windows.symbols))
        filled = of_windows.fillna(1.0).to_numpy()
        return _with_feature(windows, "z_close", torch.from_numpy(filled - 1).float())


class ScaledByMaximum(Leak):
    """The close divided by the highest close of the whole history is among the features.

    A stock far below it will rise to it. Public data sets whose prices were brought into [0, 1]
    once, before they were split, make this mistake.
    """

    def windows(self, history: History) -> Windows:
        windows = super().windows(history)
        close = history.bars.pivot(index="session", columns="symbol", values="close")
        ratio = close / close.max()
        of_windows = ratio.reindex(index=windows.as_of, columns=list(windows.symbols))
        filled = of_windows.fillna(1.0).to_numpy()
        return _with_feature(windows, "z_close", torch.from_numpy(filled - 1).float())


class LiquidUniverse(Leak):
    """The universe is the half of the stocks that traded most, later sessions included.

    A filter that is run once, over the whole history, makes this mistake.
    """

    def windows(self, history: History) -> Windows:
        bars = history.bars
        index = history.market.index.symbol
        volume = bars[bars["symbol"] != index].groupby("symbol")["volume"].mean()
        liquid = volume.index[volume >= volume.median()]
        is_kept = bars["symbol"].isin([*liquid, index])
        return super().windows(replace(history, bars=bars[is_kept]))


LEAKS: tuple[type[Leak], ...] = tuple(Leak.__subclasses__())


def fit_for_leaks(history: History, seed: int) -> History:
    """Return a history on which every leak shows, whatever the market's list and bars say.

    A third of the stocks enter and a third leave, on drawn days in the middle of the history.
    Volumes are drawn too, and a missing adjusted close is the close, as bars may lack both.
    """
    generator = np.random.default_rng([seed, 2])
    days = np.sort(history.bars["session"].unique())
    middle = days[len(days) // 3 : -len(days) // 8]
    constituents = list(history.market.constituents)
    # By their place in a drawn order, one in three enters, one in three leaves, one does neither.
    for place, position in enumerate(generator.permutation(len(constituents))):
        day = pd.Timestamp(generator.choice(middle)).date()
        if place % 3 == 1:
            constituents[position] = replace(constituents[position], since=day)
        elif place % 3 == 2:
            constituents[position] = replace(constituents[position], until=day)
    bars = history.bars.assign(volume=generator.lognormal(size=len(history.bars)))
    bars["adj_close"] = bars["adj_close"].fillna(bars["close"])
    market = replace(history.market, constituents=tuple(constituents))
    return replace(history, bars=bars, market=market)


def _with_feature(windows: Windows, name: str, ratio: Float[Tensor, "days stocks"]) -> Windows:
    """Return the same windows with other values of a feature of each stock in its last session.

    `ratio` are these values, ratios minus 1.
    """
    rows = windows.rows.clone()
    # The last session of day d is row d + window - 1; the last symbol is the index.
    rows[windows.window - 1 :, :-1, FEATURES.index(name)] = 100 * ratio
    return replace(windows, rows=rows)


def _fit_and_calibrate_on_the_same(
    inputs: Ranked, at: pd.Timestamp, config: RankersConfig
) -> Rankers:
    """Return honest rankers, but with slopes measured on days to which they were fitted."""
    rankers = fit_honestly(inputs, at, config)
    past = with_known_outcomes(inputs, at)
    days = slice(-VALIDATION_DAYS, None)
    scores = rankers.scores(past.features, past.there, days)
    relative = past.relative[days]
    slopes = {name: slope_of(ranked(of_days), relative) for name, of_days in scores.items()}
    return replace(rankers, slopes=slopes)


def _with_first_feature(inputs: Ranked, values: np.ndarray) -> Ranked:
    """Return the inputs with other values, [sessions stocks], of the first feature."""
    first = values[..., None].astype(np.float32)
    return replace(inputs, features=np.dstack([first, inputs.features[..., 1:]]))


def _ranked_over_all_days(inputs: Ranked) -> Ranked:
    """Return the inputs with a feature ranked over all days, later ones too."""
    closes = inputs.panel.close
    ratios = closes / np.roll(closes, 1, axis=0)
    ranks = pd.Series(ratios.ravel()).rank(pct=True)
    return _with_first_feature(inputs, ranks.to_numpy().reshape(closes.shape))


def _scaled_over_all_days(inputs: Ranked) -> Ranked:
    """Return the inputs with features scaled by their deviation over all days, later ones too."""
    deviation = np.nanstd(inputs.features[inputs.there], axis=0)
    return replace(inputs, features=inputs.features / (deviation + 1e-6))


def _scaled_by_maximum(inputs: Ranked) -> Ranked:
    """Return the inputs with the close over the stock's highest close of all days as a feature."""
    highest = np.nanmax(np.nan_to_num(inputs.panel.close), axis=0)
    return _with_first_feature(
        inputs, inputs.panel.close / np.maximum(highest, np.finfo(float).tiny)
    )


def _with_later_outcomes(inputs: Ranked) -> Ranked:
    """Return the inputs with the outcomes of `LATER` sessions later, as if they were known."""
    later = np.full_like(inputs.outcome, np.nan)
    later[:-LATER] = inputs.outcome[LATER:]
    return replace(inputs, outcome=later)


RANKING_LEAKS: Mapping[str, Mapping[str, Any]] = {
    "OutcomeAsFeature": {"spoil": lambda inputs: _with_first_feature(inputs, inputs.relative)},
    "RankOverHistory": {"spoil": _ranked_over_all_days},
    "ScaledOverHistory": {"spoil": _scaled_over_all_days},
    "ScaledByMaximum": {"spoil": _scaled_by_maximum},
    "LaterLeg": {"spoil": _with_later_outcomes},
    "OutcomeKnown": {"spoil": lambda inputs: replace(inputs, there=np.isfinite(inputs.outcome))},
    "PriceAsFeature": {
        "spoil": lambda inputs: _with_first_feature(inputs, ranked(inputs.panel.close))
    },
    "LaterRankers": {
        "fit": lambda inputs, _, config: fit_honestly(inputs, inputs.panel.sessions[-1], config)
    },
    "SlopeOnFittedDays": {"fit": _fit_and_calibrate_on_the_same},
}
