"""What becomes of Yahoo's answers before yfinance makes a table of them."""

import json
import re

import pytest

from dtml.sources.yahoo import AnswerError, read_chart

HOST = "query2.finance.yahoo.com"
REFUSAL = {"result": None, "error": {"code": "Unauthorized", "description": "Invalid Crumb"}}
PRICES = ("open", "high", "low", "close")


def chart(currency="USD", kind="EQUITY", **events):
    """A chart of two sessions, the second without prices; dividends by their moment."""
    quote = {name: [250.0, None] for name in PRICES} | {"volume": [1000, 0]}
    result = {
        "meta": {"currency": currency, "instrumentType": kind},
        "timestamp": [1, 2],
        "indicators": {"quote": [quote], "adjclose": [{"adjclose": [200.0, None]}]},
        "events": events,
    }
    return {"chart": {"result": [result], "error": None}}


def read(answer, http_status=200):
    """The result in the chart that yfinance is given for an answer."""
    (result,) = read_chart(http_status, HOST, json.dumps(answer).encode())["chart"]["result"]
    return result


@pytest.mark.parametrize("http_status", [401, 403])
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (json.dumps({"finance": REFUSAL}).encode(), "Invalid Crumb"),
        (json.dumps({"chart": REFUSAL}).encode(), "Invalid Crumb"),
        (b"<html>Forbidden</html>", f"web page from {HOST}"),
        (b"", f"unreadable answer from {HOST}"),
    ],
)
def test_a_refused_request_is_no_word_about_the_stock(http_status, content, reason):
    with pytest.raises(AnswerError, match=reason) as refused:
        read_chart(http_status, HOST, content)
    assert refused.value.status == "unreachable"
    assert f"HTTP {http_status}" in str(refused.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"<!doctype html><title>Yahoo</title>", f"web page from {HOST}"),
        (b"\n <html></html>", f"web page from {HOST}"),
        (b"not now", f"unreadable answer from {HOST}"),
        (b"\xff\xfe\x00", f"unreadable answer from {HOST}"),
        (b"[]", f"unreadable answer from {HOST}"),
        (b"null", f"unreadable answer from {HOST}"),
        (json.dumps({"finance": REFUSAL}).encode(), "Invalid Crumb"),
    ],
)
def test_what_is_no_chart_is_malformed_and_says_what_it_is(content, words):
    with pytest.raises(AnswerError) as malformed:
        read_chart(200, HOST, content)
    assert malformed.value.status == "malformed"
    assert re.match(f"Yahoo .*no prices: HTTP 200,.*{words}", str(malformed.value))


@pytest.mark.parametrize(
    ("http_status", "answer"),
    [
        (404, {"chart": {"result": None, "error": {"code": "Not Found", "description": "gone"}}}),
        (200, {"chart": {"result": [], "error": None}}),
        (200, {"chart": {"result": [{"meta": {}, "indicators": {"quote": [{}]}}], "error": None}}),
        (200, chart()),
    ],
)
def test_a_chart_that_needs_nothing_is_given_as_it_is(http_status, answer):
    assert read_chart(http_status, HOST, json.dumps(answer).encode()) == answer


@pytest.mark.parametrize("left", [None, [], [{}], [{"adjclose": None}]])
def test_adjusted_closes_that_are_not_there_stay_missing_but_for_an_index(left):
    for kind, expected in (("EQUITY", [None, None]), ("ETF", [None, None]), ("INDEX", [250, None])):
        answer = chart(kind=kind)
        indicators = answer["chart"]["result"][0]["indicators"]
        if left is None:
            del indicators["adjclose"]
        else:
            indicators["adjclose"] = left
        assert read(answer)["indicators"]["adjclose"] == [{"adjclose": expected}]


@pytest.mark.parametrize(
    ("named", "currency"), [("GBp", "GBP"), ("GBX", "GBP"), ("ZAc", "ZAR"), ("ILA", "ILS")]
)
def test_prices_in_hundredths_of_a_currency_become_prices_in_it(named, currency):
    result = read(chart(named))
    (quote,), (adjusted,) = result["indicators"]["quote"], result["indicators"]["adjclose"]
    assert result["meta"]["currency"] == currency
    for name in PRICES:
        assert quote[name] == [2.5, None]
    assert quote["volume"] == [1000, 0]
    assert adjusted["adjclose"] == [2.0, None]


@pytest.mark.parametrize("kind", ["dividends", "capitalGains"])
@pytest.mark.parametrize(
    ("quoted_in", "paid_in", "amount"),
    [
        ("GBp", None, 0.07),
        ("GBp", "", 0.07),
        ("GBp", "GBp", 0.07),
        ("GBp", "GBP", 7.0),
        ("GBP", "GBp", 0.07),
        ("GBP", "GBP", 7.0),
        ("GBp", "USD", None),
        ("USD", "GBp", None),
        ("USD", None, 7.0),
    ],
)
def test_a_dividend_is_in_the_currency_of_the_prices_or_left_out(quoted_in, paid_in, amount, kind):
    event = {"date": 1, "amount": 7.0} | ({} if paid_in is None else {"currency": paid_in})
    split = {"1": {"date": 1, "numerator": 2, "denominator": 1}}
    result = read(chart(quoted_in, **{kind: {"1": event}, "splits": split}))
    expected = {} if amount is None else {"1": {"date": 1, "amount": amount}}
    assert result["events"][kind] == expected
    assert result["events"]["splits"] == split
