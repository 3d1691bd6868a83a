"""A user's own file: which features the audit admits and which it refuses, and
how a fitted model is kept.
"""

import re
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch.nn import Linear, ReLU, Sequential

from dtml.evaluation.ranking import rank_ics
from dtml.lookahead.pipeline import History
from dtml.markets import load_market
from dtml.own import admission, process
from dtml.own.admission import admit, past_of
from dtml.own.code import OwnCode, fit, kept, load, ranks_of, restored, scored, values_of
from dtml.own.process import IsolatedCode
from dtml.ranking.outcomes import outcomes
from dtml.ranking.panel import ranked
from dtml.sources.simulated import SimulatedMarket, SimulatedSource
from tests.support.own_code import HONEST, LEAKS
from tests.support.own_code_ideas import FILES, IDEAS
from tests.support.own_code_leaks import LEAKS as LEAKS_BY_KIND
from tests.support.own_code_market import large_market, refusal
from tests.support.panels import made_bars, made_panel

pytestmark = pytest.mark.slow

PANEL = made_panel(made_bars(9))
THERE = PANEL.observed
SIMULATED = SimulatedSource(market=SimulatedMarket(leaders=3, followers=2, start=date(2022, 1, 3)))
MARKET = load_market("simulated").with_symbols(SIMULATED.market.symbols)
PAST = past_of(MARKET, SIMULATED.bars(date(2023, 12, 29)))


def refused(text: str) -> dict[str, str]:
    """What the audit refuses in a file, with its reason."""
    found = admit(IsolatedCode(OwnCode("mine.py", text)), PAST, "next_close")
    return {each["what"]: each["detail"] for each in reversed(found) if not each["passed"]}


@pytest.mark.one_case
@pytest.mark.parametrize("leak", LEAKS)
def test_a_leak_is_refused_and_named_with_a_day_on_which_it_shows_and_by_how_much(
    leak: str,
) -> None:
    found = refused(LEAKS[leak])
    assert found, leak
    ((what, said),) = found.items()
    assert what == ("MODEL" if "MODEL" in LEAKS[leak] else "f")
    assert said.startswith((f"{what} looked ahead: ", "f depends on later ", "MODEL "))
    if "looked ahead" in said:
        assert "but " in said.split(" is ")[1], said


@pytest.mark.soak
def test_twenty_honest_features_are_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    # some answer session by session, which takes its time
    monkeypatch.setattr(admission, "SESSIONS", 330)
    monkeypatch.setattr(admission, "YEAR", 21)
    assert len(load(OwnCode("mine.py", HONEST)).features) == 20
    assert refused(HONEST) == {}


@pytest.mark.soak
def test_a_feature_that_reads_further_back_than_a_night_is_refused_until_its_file_says_it() -> None:
    text = "def old(bars):\n    return bars.close / bars.close.shift(300)\n"
    assert "more than HISTORY" in refused(text)["old"]
    assert refused(f"HISTORY = 310\n{text}") == {}


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    code = "def spread(bars):\n    return bars.high - bars.low\n"
    (tmp_path / "plain.py").write_text(code, encoding="utf-8")
    (tmp_path / "marked.py").write_text(code, encoding="utf-8-sig")
    plain = OwnCode.read(tmp_path / "plain.py")
    marked = OwnCode.read(tmp_path / "marked.py")
    assert marked.text == plain.text == code
    assert marked.sha256 == plain.sha256


def test_a_model_that_is_not_seeded_is_refused() -> None:
    text = (
        "import secrets\n\n\ndef session(bars):\n    return bars.close / bars.open\n\n\n"
        "class Model:\n    def fit(self, features, outcome):\n        return self\n\n"
        "    def predict(self, features):\n        return [secrets.randbelow(100) for _ in "
        "features]\n\n\nMODEL = Model"
    )
    assert "fitted again" in refused(text)["MODEL"]


SUBTLE_LEAKS = [(kind, name) for kind, leaks in LEAKS_BY_KIND.items() for name in leaks]


@pytest.fixture(scope="module")
def large() -> History:
    return large_market()


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder, for leaks that would keep files there."""
    monkeypatch.setattr(process, "_idle", [])  # a new process, which finds it
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.one_case
@pytest.mark.parametrize(("kind", "name"), SUBTLE_LEAKS)
def test_a_leak_is_refused(kind: str, name: str, large: History, at_home: Path) -> None:
    assert refusal(LEAKS_BY_KIND[kind][name], large)
    assert list(at_home.iterdir()) == []


@pytest.mark.by_quarters
@pytest.mark.soak
@pytest.mark.parametrize("name", FILES)
def test_honest_ideas_are_admitted(name: str, large: History) -> None:
    assert refusal(FILES[name], large) == ""


def test_leaks_of_four_kinds_and_honest_ideas_are_many() -> None:
    assert {kind: len(leaks) for kind, leaks in LEAKS_BY_KIND.items()} == {
        "state": 10,
        "size": 10,
        "rarity": 10,
        "range": 10,
    }
    assert len(IDEAS) == 30


def test_what_ranks_far_better_than_any_rule_is_refused_until_the_market_file_allows_it() -> None:
    text = "def f(bars):\n    return bars.close / bars.open\n"
    strict = replace(PAST, market=replace(MARKET, checks=replace(MARKET.checks, max_rank_ic=1e-4)))
    why = refusal(text, strict)
    assert re.match(r"f is .*rank IC.*±0\.0001", why)
    assert "max_rank_ic in [checks]" in why
    lifted = replace(PAST, market=replace(MARKET, checks=replace(MARKET.checks, max_rank_ic=0.9)))
    assert refusal(text, lifted) == ""


def test_what_a_file_of_later_prices_says_is_too_good_to_be_true(tmp_path: Path) -> None:
    closes = PAST.bars.pivot(index="session", columns="symbol", values="adj_close")
    file = tmp_path / "later.pickle"
    (closes.shift(-1) / closes).to_pickle(file)
    text = f"import pandas as pd\n\n\ndef f(bars):\n    return pd.read_pickle({str(file)!r})\n"
    unsaid = replace(PAST, market=replace(MARKET, checks=replace(MARKET.checks, max_rank_ic=None)))
    why = refusal(text, unsaid)
    assert re.search(r"f is .*IC.*\+1\.000 \[1\.000, 1\.000\]", why)


def test_a_rank_ic_that_chance_explains_is_believed_however_large_it_is() -> None:
    """Five stocks whose returns over twenty days overlap: 37 of 400 such rank ICs exceed .3."""
    random = np.random.default_rng(3)
    believed, largest = [], 0.0
    for _ in range(40):
        idea = np.repeat(random.standard_normal((1, 5)), 126, axis=0)
        price = random.standard_normal((146, 5)).cumsum(axis=0)
        outcome = price[20:] - price[:-20]
        largest = max(largest, abs(float(rank_ics(idea, outcome).mean())))
        found = admission._plausibility("f", idea, outcome, 0.3, "twenty_days")
        believed.append(found["passed"])
    assert largest > 0.3
    assert all(believed)
    assert not admission._plausibility("f", outcome, outcome, 0.3, "twenty_days")["passed"]


@pytest.mark.soak
def test_a_mean_that_never_forgets_is_refused_and_the_message_says_how_to_write_it() -> None:
    body = "bars.close.ewm(span=200).mean() / bars.close"
    why = refusal(f"def f(bars):\n    return {body}\n", PAST)
    assert "`.iloc[-1]`" in why
    assert refusal(f"def f(bars):\n    return ({body}).iloc[-1]\n", PAST) == ""


def test_a_history_that_the_market_does_not_have_is_refused() -> None:
    text = "HISTORY = 480\n\n\ndef f(bars):\n    return bars.close / bars.open\n"
    assert "HISTORY is 480 sessions" in refusal(text, PAST)


MODELS = (
    None,
    Ridge(),
    LogisticRegression(),
    HistGradientBoostingClassifier(max_iter=5),
    RandomForestRegressor(5, random_state=0),
    make_pipeline(
        StandardScaler(), MLPRegressor(hidden_layer_sizes=(3,), max_iter=5, random_state=1)
    ),
    Sequential(Linear(20, 3), ReLU(), Linear(3, 1)),
)


@pytest.mark.soak
@pytest.mark.one_case
@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_a_fitted_model_is_kept_without_a_pickle_and_scores_the_same_to_the_last_bit(
    model: object,
) -> None:
    loaded = replace(load(OwnCode("mine.py", HONEST)), model=model)
    ranks = ranks_of(values_of(loaded, PANEL), THERE)
    relative = ranked(np.where(THERE, outcomes(PANEL, "next_close"), np.nan))
    fitted = fit(model, ranks, relative, slice(0, 300))
    again = restored(loaded, kept(fitted, ranks, relative, slice(0, 300)))
    assert np.array_equal(
        scored(again, ranks[-1:], THERE[-1:]), scored(fitted, ranks[-1:], THERE[-1:])
    )
