"""The published experiment: its data sets and their spans, the recipe of each model, and the published figures.

Spans are sessions predicted, as Yoo et al. (KDD 2021) and Feng et al. (IJCAI 2019) have them. A recipe is what its
authors report for the set; where they report none, its comment gives the source. Nothing here was chosen on a test
span.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from itertools import product

from dtml.baselines.recurrent import RecurrentConfig
from dtml.baselines.stocknet import StockNetConfig
from dtml.errors import UsageError
from dtml.layers.network import NetworkConfig
from dtml.markets import Market, load_market
from dtml.model import ModelConfig
from dtml.training.recipe import TrainingConfig


@dataclass(frozen=True)
class Recipe:
    """One configuration of one network: the sessions it sees, its shape, and how it is trained."""

    window: int
    model: NetworkConfig
    training: TrainingConfig


@dataclass(frozen=True)
class Figure:
    """Published ACC and MCC, mean and standard deviation over 10 seeds (Yoo et al., KDD 2021, table 2)."""

    acc: float
    acc_sd: float
    mcc: float
    mcc_sd: float


@dataclass(frozen=True)
class PublishedSet:
    """A public data set: spans of sessions predicted, both ends included, and the models trained on it.

    `notes` say how the public files compare with the paper's set; `data_until` is their last session, where they end
    before the test span does.
    """

    market: str
    stocks: int  # in the public files
    train: tuple[date, date]
    validation: tuple[date, date]
    test: tuple[date, date]
    recipes: Mapping[str, Recipe]
    published: Mapping[str, Figure]
    notes: tuple[str, ...] = ()
    data_until: date | None = None

    @property
    def last_session(self) -> date:
        """Return the last session that the data must reach."""
        return self.data_until or self.test[1]


def require_set(market: Market, paper: PublishedSet) -> None:
    """Raise UsageError unless the market has the set's stocks.

    They are those that the set's market lists or, where its list is of another time, as many as the public files hold.
    """
    listed = set(load_market(paper.market).symbols)
    named = listed if len(listed) == paper.stocks else set(market.symbols)
    if len(market.symbols) != paper.stocks or named != set(market.symbols):
        raise UsageError(
            f"this is not {paper.market}'s data: {len(market.symbols)} stocks, {len(listed & set(market.symbols))} of "
            f"them in its market's list; the set has {paper.stocks}: name its files with --prices and --index"
        )


def _dtml(window: int, hidden: int, beta: float, epochs: int) -> Recipe:
    """Return what Yoo et al. chose for the set; batch 64 days, Adam .001, dropout .15, lambda 1.

    Of the 100 and 200 epochs of their grid, the long sets take the first.
    """
    return Recipe(window, ModelConfig(hidden=hidden, beta=beta), TrainingConfig(epochs=epochs))


def _feng(window: int, penalty: float, model: RecurrentConfig, *, batch_days: int = 20, epochs: int = 150) -> Recipe:
    """Return Feng et al.'s public settings: Adam .01, batches of 1,024 labelled stock-days, 150 epochs.

    ACL18 has some 51 labelled stocks a day, KDD17 33; the long sets take a third of the epochs, as many steps.
    """
    training = TrainingConfig(
        epochs=epochs, batch_days=batch_days, learning_rate=0.01, penalty=penalty, first_kept_epoch=1
    )
    return Recipe(window, model, training)


def _stocknet(epochs: int) -> Recipe:
    """Return Xu and Cohen's public settings, but for batches of 4 days of 33 to 51 labelled stocks, not 32 samples.

    They train 15 epochs; the long sets take a third of them, as many steps.
    """
    training = TrainingConfig(epochs=epochs, batch_days=4, first_kept_epoch=1, clip=15.0)
    return Recipe(5, StockNetConfig(posterior_past=True), training)


ACL18 = PublishedSet(
    market="acl18",
    stocks=87,
    train=(date(2014, 1, 2), date(2015, 7, 31)),
    validation=(date(2015, 8, 3), date(2015, 9, 30)),
    test=(date(2015, 10, 1), date(2015, 12, 31)),
    recipes={
        "dtml": _dtml(window=10, hidden=64, beta=0.1, epochs=200),
        "lstm": _feng(10, 10.0, RecurrentConfig(hidden=32, attention=False)),
        "alstm": _feng(5, 1.0, RecurrentConfig(hidden=4)),
        "adv_alstm": _feng(5, 1.0, RecurrentConfig(hidden=4, epsilon=0.05, adversarial=0.01)),
        "stocknet": _stocknet(epochs=15),
    },
    published={
        "dtml": Figure(0.5744, 0.0194, 0.1910, 0.0315),
        "lstm": Figure(0.4987, 0.0127, 0.0337, 0.0398),
        "alstm": Figure(0.4919, 0.0142, 0.0142, 0.0275),
        "adv_alstm": Figure(0.5380, 0.0177, 0.0830, 0.0353),
        "stocknet": Figure(0.5285, 0.0020, 0.0187, 0.0011),
    },
    notes=(
        "labelled stock-days of validation and test, 2,555 and 3,720, are as many as in the features that Feng et al. "
        "publish of this set",
    ),
)

KDD17 = PublishedSet(
    market="kdd17",
    stocks=50,
    train=(date(2007, 1, 3), date(2014, 12, 31)),
    validation=(date(2015, 1, 2), date(2015, 12, 31)),
    test=(date(2016, 1, 4), date(2016, 12, 30)),
    recipes={
        "dtml": _dtml(window=15, hidden=64, beta=0.01, epochs=100),
        "lstm": _feng(5, 0.001, RecurrentConfig(hidden=4, attention=False), batch_days=31, epochs=50),
        "alstm": _feng(15, 0.001, RecurrentConfig(hidden=16), batch_days=31, epochs=50),
        "adv_alstm": _feng(
            15, 0.001, RecurrentConfig(hidden=16, epsilon=0.001, adversarial=0.05), batch_days=31, epochs=50
        ),
        "stocknet": _stocknet(epochs=5),
    },
    published={
        "dtml": Figure(0.5353, 0.0075, 0.0733, 0.0195),
        "lstm": Figure(0.5118, 0.0066, 0.0187, 0.0110),
        "alstm": Figure(0.5166, 0.0041, 0.0316, 0.0119),
        "adv_alstm": Figure(0.5169, 0.0058, 0.0333, 0.0137),
        "stocknet": Figure(0.5193, 0.0001, 0.0335, 0.0050),
    },
    notes=(
        "labelled stock-days of validation and test, 8,070 and 7,398, are as many as in the features that Feng et al. "
        "publish of this set",
    ),
)

NDX100 = PublishedSet(
    market="ndx100",
    stocks=94,
    train=(date(2013, 1, 2), date(2015, 12, 31)),
    validation=(date(2016, 1, 4), date(2016, 12, 30)),
    test=(date(2017, 1, 3), date(2017, 12, 29)),
    # No public settings for this set but DTML's: the others take those of KDD17.
    recipes=dict(KDD17.recipes) | {"dtml": _dtml(window=15, hidden=128, beta=0.01, epochs=100)},
    published={
        "dtml": Figure(0.5406, 0.0037, 0.0310, 0.0193),
        "lstm": Figure(0.5263, 0.0003, 0.0037, 0.0049),
        "alstm": Figure(0.5260, 0.0007, 0.0028, 0.0084),
        "adv_alstm": Figure(0.5404, 0.0003, 0.0046, 0.0090),
        "stocknet": Figure(0.5392, 0.0016, 0.0253, 0.0102),
    },
    notes=(
        "94 of the paper's 95 stocks",
        "no adjusted close: returns are those of the close, which is adjusted for splits and not for dividends",
        "the public prices end on 2017-12-08, the paper's test span on 2017-12-29",
    ),
    data_until=date(2017, 12, 8),
)

SETS: Mapping[str, PublishedSet] = {paper.market: paper for paper in (ACL18, KDD17, NDX100)}


def name_of(model: NetworkConfig) -> str:
    """Return the name of a network in the published table."""
    match model:
        case RecurrentConfig(attention=False):
            return "lstm"
        case RecurrentConfig(epsilon=0.0):
            return "alstm"
        case RecurrentConfig():
            return "adv_alstm"
        case StockNetConfig():
            return "stocknet"
    return "dtml"


def grid(recipe: Recipe) -> list[Recipe]:
    """Return the published grid around DTML's recipe: window, hidden size, beta, learning rate.

    Its fifth axis, 100 or 200 epochs, is left out: the best epoch on validation is kept in any case.
    """
    assert isinstance(recipe.model, ModelConfig)
    axes = product((10, 15), (64, 128), (0.01, 0.1, 1.0), (1e-3, 1e-4))
    return [
        Recipe(window, replace(recipe.model, hidden=hidden, beta=beta), replace(recipe.training, learning_rate=rate))
        for window, hidden, beta, rate in axes
    ]


def shortened(paper: PublishedSet, epochs: int | None) -> PublishedSet:
    """Return the same experiment with at most so many epochs of training: for a quick look, not for a table."""
    if epochs is None:
        return paper
    recipes = {}
    for name, recipe in paper.recipes.items():
        fewer = min(epochs, recipe.training.epochs)
        recipes[name] = replace(recipe, training=replace(recipe.training, epochs=fewer))
    return replace(paper, recipes=recipes)
