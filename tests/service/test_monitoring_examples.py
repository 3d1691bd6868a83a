"""What flows/README.md gives to Prometheus, Grafana and a mail server is what they can use."""

import re
from datetime import UTC, datetime

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from flows.dashboard.monitoring import metrics
from tests.support.places import ROOT

PAGE = (ROOT / "flows" / "README.md").read_text(encoding="utf-8")
NOON = datetime(2026, 11, 26, 12, tzinfo=UTC)
METRIC = re.compile(r"\bdtml_\w+")


def block(language, word):
    """Return the block of the page in a language that has a word."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return next(text for text in blocks if word in text)


def families(engine):
    """Return the labels of every metric that a store has, samples or none."""
    text = metrics(engine, NOON)
    return {
        family.name: {label for sample in family.samples for label in sample.labels}
        for family in text_string_to_metric_families(text)
    }


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_every_metric_of_a_rule_and_of_the_page_s_table_is_one_that_a_store_has(engine):
    rules = yaml.safe_load(block("yaml", "groups:"))["groups"][0]["rules"]
    assert [rule["alert"] for rule in rules] == ["NightLate", "DashboardDown", "NightSlow"]
    assert all(set(rule) >= {"expr", "labels", "annotations"} for rule in rules)
    named = {name for rule in rules for name in METRIC.findall(rule["expr"])}
    listed = set(re.findall(r"^\| `(dtml_\w+)`", PAGE, re.MULTILINE))
    found = set(families(engine))
    assert named <= found
    assert listed == found
