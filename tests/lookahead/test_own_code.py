"""A user's own file: no value of a session depends on a later one, each is computed once, and a
fitted model is kept without a pickle.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch.nn import Linear, ReLU, Sequential

from dtml.evaluation.ranking import rank_ics
from dtml.markets import load_market
from dtml.own import process
from dtml.own.code import (
    PRICES,
    OwnCode,
    OwnCodeError,
    fit,
    kept,
    load,
    ranks_of,
    restored,
    scored,
    values_of,
    window_of,
)
from dtml.own.plausible import doubt
from dtml.own.process import IsolatedCode
from dtml.own.sandbox import Sandbox, Server
from dtml.ranking.outcomes import outcomes
from dtml.ranking.panel import ranked
from tests.support.own_code import HONEST, LEAKS
from tests.support.own_code_ideas import FILES
from tests.support.own_code_leaks import LEAKS as LEAKS_BY_KIND
from tests.support.own_code_leaks import STATE
from tests.support.own_code_market import large_panel, sees_later
from tests.support.panels import made_bars, made_panel

pytestmark = pytest.mark.slow

PANEL = made_panel(made_bars(9))
THERE = PANEL.observed
ALL_LEAKS = LEAKS | {name: text for leaks in LEAKS_BY_KIND.values() for name, text in leaks.items()}


@pytest.fixture(scope="module")
def large():
    return large_panel()


@pytest.mark.one_case("return to be predicted")
@pytest.mark.parametrize("name", ALL_LEAKS)
def test_no_value_of_a_session_depends_on_a_later_one(name, large):
    assert not sees_later(ALL_LEAKS[name], large)


@pytest.mark.soak
def test_what_a_file_would_keep_at_home_is_not_there(large, tmp_path, monkeypatch):
    # New processes, which find that home.
    monkeypatch.setattr(process, "SANDBOX", replace(process.SANDBOX, idle=[]))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not [text for text in STATE.values() if sees_later(text, large)]
    assert list(tmp_path.iterdir()) == []


def whole(panel):
    """All bars at once, in currency units."""
    frames = {
        name: pd.DataFrame(getattr(panel, name), panel.sessions, list(panel.symbols))
        for name in PRICES
    }
    return SimpleNamespace(**frames)


@pytest.mark.one_case("features, 1")
@pytest.mark.parametrize("name", [name for name in FILES if "feature" in name or name == "long"])
def test_honest_features_have_the_values_that_one_pass_over_all_bars_gives(name, large):
    loaded = load(OwnCode("mine.py", FILES[name]))
    days = [620, 777, 1000]
    own = IsolatedCode(OwnCode("mine.py", FILES[name])).values(large, days)
    for column, feature in enumerate(loaded.features.values()):
        expected = feature(whole(large)).iloc[days].to_numpy(dtype=float)
        found = own[:, :, column]
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


def test_a_file_describes_its_features_and_its_history():
    assert len(load(OwnCode("mine.py", HONEST)).features) == 20
    text = "HISTORY = 310\ndef old(bars):\n    return bars.close / bars.close.shift(300)\n"
    own = IsolatedCode(OwnCode("mine.py", text))
    assert own.description["features"] == ["old"]
    assert np.isfinite(own.values(PANEL, [400])).any()
    short = IsolatedCode(OwnCode("mine.py", text.replace("310", "290")))
    assert np.isnan(short.values(PANEL, [400])).all()  # it has no such bar


def test_a_feature_that_fails_is_missing_only_while_there_are_fewer_sessions_than_it_may_read():
    own = IsolatedCode(
        OwnCode("mine.py", "HISTORY = 30\ndef f(bars):\n    return bars.close.iloc[-21]")
    )
    found = own.values(PANEL, [10, 25, 80])
    assert np.isnan(found[0]).all()
    assert np.isfinite(found[1:]).any(axis=(1, 2)).all()
    failing = "HISTORY = 30\ndef f(bars):\n    raise EOFError('short file')"
    bad = IsolatedCode(OwnCode("mine.py", failing))
    with pytest.raises(OwnCodeError, match=r"mine\.py, line 3: EOFError: short file"):
        bad.values(PANEL, [80])


def test_an_infinite_value_is_missing():
    own = IsolatedCode(OwnCode("mine.py", "def f(bars):\n    return bars.close / (0 * bars.open)"))
    assert np.isnan(own.values(PANEL, [80])).all()


@pytest.mark.parametrize("answer", ["'high'", "bars.close.to_numpy()", "bars.close.iloc[:, 0]"])
def test_an_answer_that_is_not_of_the_stocks_is_refused(answer):
    own = IsolatedCode(OwnCode("mine.py", f"def f(bars):\n    return {answer}\n"))
    with pytest.raises(OwnCodeError, match="f returned "):
        own.values(PANEL, [300])


def test_a_value_is_computed_once_for_a_text_its_bars_and_a_session(tmp_path, monkeypatch):
    asked = []
    real = Sandbox.ask

    def counted(own, name, question, *arrays):
        asked.append(question["task"])
        return real(own, name, question, *arrays)

    monkeypatch.setattr(Sandbox, "ask", counted)

    def values(text, panel, days):
        asked.clear()
        found = IsolatedCode(OwnCode("mine.py", text), tmp_path).values(panel, days)
        return found, asked.count("values")

    text = "def f(bars):\n    return bars.close / bars.open\n"
    first, computed = values(text, PANEL, [300, 301])
    assert computed == 2
    again, computed = values(text, PANEL, [300, 301, 302])
    assert computed == 1
    np.testing.assert_array_equal(again[:2], first)
    restated = PANEL.close.copy()
    restated[301] *= 2
    changed, computed = values(text, replace(PANEL, close=restated), [300, 301])
    assert computed == 1
    np.testing.assert_allclose(changed[1], 2 * first[1])
    assert values(text.replace("open", "high"), PANEL, [300])[1] == 1
    other_stocks = replace(PANEL, symbols=tuple(f"{name}.L" for name in PANEL.symbols))
    assert values(text, other_stocks, [300])[1] == 1


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("return bars.close if len(bars.close) < 300 else __import__('os')._exit(3)", "status 3"),
        ("__import__('os').closerange(3, 99), __import__('time').sleep(9)", "took more than 1 s"),
    ],
)
def test_what_fails_on_a_later_session_is_told_and_leaves_no_server(body, why, monkeypatch):
    monkeypatch.setenv("DTML_CODE_SECONDS", "1")
    monkeypatch.setattr(process, "SANDBOX", replace(process.SANDBOX, idle=[]))
    started = []
    monkeypatch.setattr(Server, "__init__", counting(started, Server.__init__))
    own = IsolatedCode(OwnCode("mine.py", f"HISTORY = 310\ndef f(bars):\n    {body}"))
    with pytest.raises(OwnCodeError, match=why):
        own.values(PANEL, [290, 310, 311])
    alive = [server for server in started if server.process.poll() is None]
    assert {id(server) for server in alive} == {id(server) for server in process.SANDBOX.idle}
    for server in process.SANDBOX.idle:
        server.end()


def counting(started, real):
    def start(server, *arguments):
        real(server, *arguments)
        started.append(server)

    return start


def test_threads_that_ask_at_once_do_not_end_each_other_s_servers():
    def values(number):
        own = IsolatedCode(
            OwnCode("mine.py", f"K = {number}\ndef f(bars):\n    return bars.close * K")
        )
        return np.stack([own.values(PANEL, [day]) for day in range(300, 315)])

    with ThreadPoolExecutor(6) as pool:
        one, *others = pool.map(values, range(1, 7))
    for number, other in enumerate(others, start=2):
        np.testing.assert_array_equal(other, one * number)


def test_a_damaged_value_is_computed_again_and_another_number_of_features_refused(tmp_path):
    own = IsolatedCode(OwnCode("mine.py", "def f(bars):\n    return bars.close"), tmp_path)
    first = own.values(PANEL, [300])
    (file,) = tmp_path.rglob("*.npy")
    file.write_bytes(file.read_bytes()[:20])
    np.testing.assert_array_equal(own.values(PANEL, [300]), first)
    changing = (
        "import os\nFEATURES = {}\nfor number in range(os.getpid() % 1000 + 1):\n"
        "    FEATURES[str(number)] = lambda bars: bars.close\n"
    )
    with pytest.raises(OwnCodeError, match="other features"):
        IsolatedCode(OwnCode("mine.py", changing)).values(PANEL, [300])


def test_a_later_dividend_computes_no_value_again(tmp_path):
    own = IsolatedCode(OwnCode("mine.py", "def f(bars):\n    return bars.close"), tmp_path)
    own.values(PANEL, [300, 301])
    factor = np.where(np.arange(PANEL.close.shape[1]) % 2, 0.987, 1.0)
    grids = {name: getattr(PANEL, name) * factor for name in ("open", "high", "low", "close")}
    own.values(replace(PANEL, **grids), [300, 301])
    assert len(list(tmp_path.rglob("*.npy"))) <= 3  # rounding may differ once in a while


def test_a_fold_does_not_know_the_outcomes_of_the_days_that_it_scores():
    own = IsolatedCode(OwnCode("mine.py", HONEST))
    relative = ranked(np.where(THERE, outcomes(PANEL, "next_close"), np.nan))
    folds = [(slice(270, 300), slice(310, 313)), (slice(273, 303), slice(313, 316))]
    known = relative.copy()
    known[310:] = np.nan
    scores, fitted = own.walk(PANEL, THERE, relative, folds)
    blind, _ = own.walk(PANEL, THERE, known, folds)
    np.testing.assert_array_equal(scores, blind)
    assert np.isfinite(scores[310:316]).sum() == THERE[310:316].sum()
    (night,) = own.night(PANEL.cut(slice(0, 316)), THERE[:316], fitted)
    np.testing.assert_array_equal(night, scores[315])


def test_features_without_a_value_rank_no_stock():
    relative = ranked(np.where(THERE, outcomes(PANEL, "next_close"), np.nan))
    folds = [(slice(270, 300), slice(310, 313))]
    end = PANEL.sessions[315].date()
    text = (
        f"def f(bars):\n    return bars.close[bars.close.index < '{end}'].reindex(bars.close.index)"
    )
    _, fitted = IsolatedCode(OwnCode("mine.py", text)).walk(PANEL, THERE, relative, folds)
    with pytest.raises(OwnCodeError, match=rf"mine\.py: no feature has a value on {end}: "):
        IsolatedCode(fitted.code).night(PANEL.cut(slice(0, 316)), THERE[:316], fitted)
    missing = IsolatedCode(OwnCode("mine.py", "def f(bars):\n    return bars.close * float('nan')"))
    first, last = PANEL.sessions[270].date(), PANEL.sessions[312].date()
    with pytest.raises(OwnCodeError, match=f"no feature has a value from {first} to {last}: "):
        missing.walk(PANEL, THERE, relative, folds)


def test_a_model_that_draws_as_it_scores_gives_a_night_the_scores_of_the_walk():
    model = """
class MODEL:
    def fit(self, features, outcome):
        np.random.random(3)

    def predict(self, features):
        return np.random.random(len(features))
"""
    own = IsolatedCode(OwnCode("mine.py", HONEST + model))
    relative = ranked(np.where(THERE, outcomes(PANEL, "next_close"), np.nan))
    scores, fitted = own.walk(PANEL, THERE, relative, [(slice(300, 304), slice(310, 311))])
    (night,) = own.night(PANEL.cut(slice(0, 311)), THERE[:311], fitted)
    np.testing.assert_array_equal(night, scores[310])


def test_what_ranks_far_better_than_any_rule_is_doubted_unless_the_market_file_allows_it():
    market = load_market("simulated")
    outcome = outcomes(PANEL, "next_close")

    def doubted(scores, **checks):
        allowing = replace(market, checks=replace(market.checks, max_rank_ic=None, **checks))
        return doubt(allowing, PANEL, "next_close", scores, outcome)

    why = doubted(outcome)
    assert "+1.000 [1.000, 1.000]" in why
    assert "max_rank_ic in [checks]" in why
    assert doubted(PANEL.close / PANEL.open) == ""


def test_a_rank_ic_that_chance_explains_is_believed_however_large_it_is():
    """Five stocks whose returns over twenty days overlap: 37 of 400 such rank ICs exceed .3."""
    market = load_market("simulated")
    bounded = replace(market, checks=replace(market.checks, max_rank_ic=0.3))
    random = np.random.default_rng(3)
    largest = 0.0
    for _ in range(40):
        idea = np.repeat(random.standard_normal((1, 5)), 126, axis=0)
        price = random.standard_normal((146, 5)).cumsum(axis=0)
        outcome = price[20:] - price[:-20]
        largest = max(largest, abs(float(rank_ics(idea, outcome).mean())))
        assert doubt(bounded, PANEL, "twenty_days", idea, outcome) == ""
    assert largest > 0.3
    assert doubt(bounded, PANEL, "twenty_days", outcome, outcome)


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


@cache
def honest_ranks():
    loaded = load(OwnCode("mine.py", HONEST))
    days = range(len(PANEL.sessions))
    values = [values_of(loaded, window_of(PANEL, day, 130)) for day in days]
    return ranks_of(np.stack(values), THERE)


@pytest.mark.soak
@pytest.mark.one_case
@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_a_fitted_model_is_kept_without_a_pickle_and_scores_the_same_to_the_last_bit(model):
    loaded = replace(load(OwnCode("mine.py", HONEST)), model=model)
    ranks = honest_ranks()
    relative = ranked(np.where(THERE, outcomes(PANEL, "next_close"), np.nan))
    fitted = fit(model, ranks[:300], relative[:300])
    again = restored(loaded, kept(fitted, ranks[:300], relative[:300]))
    assert np.array_equal(
        scored(again, ranks[-1:], THERE[-1:]), scored(fitted, ranks[-1:], THERE[-1:])
    )
