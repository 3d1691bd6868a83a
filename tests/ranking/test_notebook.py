"""The interface for notebooks: what it takes, and what it says of a mistake."""

import pytest

from dtml import Study
from dtml.errors import UsageError
from flows.notebook import Night
from tests.support.nights import AS_OF, BARS, small_market

FIRST, LAST = "2024-01-02", "2024-06-28"


@pytest.fixture
def files(tmp_path):
    """A market's file and the file of its prices, as a notebook names them."""
    market, prices = tmp_path / "home.toml", tmp_path / "prices.csv"
    market.write_text(small_market(source="files"))
    BARS.rename(columns={"session": "date"}).to_csv(prices, index=False)
    return str(market), str(prices)


def test_files_and_days_may_be_texts(files, store_url):
    market, prices = files
    assert not Study(market, FIRST, LAST, prices=prices).bars.empty
    assert Night(market, str(AS_OF), prices=prices).row["as_of"] == AS_OF


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"first": LAST, "last": FIRST}, f"{LAST}, is after the last session, {FIRST}"),
        ({"first": "2999-01-02"}, "2999-01-02, is after the last session, "),
        ({"first": FIRST, "leg": "tomorrow"}, "unknown leg 'tomorrow': choose one of next_close"),
    ],
)
def test_a_study_says_what_is_wrong_with_its_days_and_its_leg(files, options, words):
    market, prices = files
    with pytest.raises(UsageError, match=words):
        Study(market, prices=prices, **options)


def test_a_walk_says_what_an_estimator_must_have(files):
    market, prices = files
    study = Study(market, FIRST, LAST, prices=prices)
    with pytest.raises(UsageError, match=r"3 has neither fit nor forward: .*low_volatility"):
        study.walk(3, FIRST)
