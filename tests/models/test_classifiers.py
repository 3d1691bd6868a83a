"""The classifiers: what they learn from, what chooses among them, and what they say nothing of."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from dtml.baselines.classifiers import INVERSE_PENALTIES, fit_classifier
from dtml.errors import DtmlError
from dtml.windows import Windows
from tests.support.batches import FEATURES, random
from tests.support.bounds import in_float64

KINDS = ("logistic_regression", "gradient_boosting")


def made_windows(seed, days, stocks=13):
    """Stocks that fell in the last session before, rise as a rule, and more so
    after the index rose.
    """
    generator = random(seed)
    rows = torch.randn(days + 2, stocks + 1, FEATURES, generator=generator)
    signal = rows[2:, -1:, 4] - 2 * rows[2:, :-1, 4]
    observed = torch.rand(days, stocks, generator=generator) < 0.9
    sessions = pd.bdate_range("2021-01-01", periods=days + 1).as_unit("ns")
    return Windows(
        rows=rows,
        window=3,
        observed=observed,
        movement=0.01 * signal + 0.01 * torch.randn(days, stocks, generator=generator),
        as_of=sessions[:-1],
        target=sessions[1:],
        symbols=tuple(map(str, range(stocks))),
    )


TRAIN, VALIDATION, TEST = made_windows(0, 101), made_windows(1, 23), made_windows(2, 41)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_classifier_finds_a_planted_signal_and_says_nothing_of_what_it_cannot_see(kind):
    fitted = fit_classifier(kind, TRAIN, VALIDATION, "published", seed=0)
    found = fitted.probability(TEST)
    np.testing.assert_array_equal(np.isnan(found), ~TEST.observed.numpy())
    seen = TEST.labelled("all").numpy()
    assert ((found > 0.5) == TEST.rises().numpy())[seen].mean() > 0.8
    assert 0 <= np.nanmin(found) < np.nanmax(found) <= 1
    counted = VALIDATION.labelled("published").numpy()
    right = (fitted.probability(VALIDATION) > 0.5) == VALIDATION.rises().numpy()
    assert fitted.validation_acc == in_float64(right[counted].mean())


@pytest.mark.soak
@pytest.mark.slow
def test_a_classifier_is_the_same_for_a_seed_and_only_the_boosting_differs_between_seeds():
    for kind, seeds_differ in zip(KINDS, (False, True), strict=True):
        one, again, other = (
            fit_classifier(kind, TRAIN, VALIDATION, "all", seed).probability(TEST)
            for seed in (0, 0, 1)
        )
        np.testing.assert_array_equal(one, again)
        assert np.array_equal(one, other, equal_nan=True) != seeds_differ


@pytest.mark.soak
@pytest.mark.slow
def test_validation_labels_choose_among_the_configurations_and_do_nothing_else():
    upside_down = replace(VALIDATION, movement=-VALIDATION.movement)
    rises = TEST.rises().numpy()
    for kind, tried in zip(KINDS, (len(INVERSE_PENALTIES), 400), strict=True):
        one, other = (
            fit_classifier(kind, TRAIN, validation, "all", seed=0)
            for validation in (VALIDATION, upside_down)
        )
        assert one.tried == other.tried == tried
        assert one.chosen != other.chosen
        for fitted in (one, other):  # learned from the training days, whatever was chosen
            found = fitted.probability(TEST)
            assert np.nanmean(found[rises]) > np.nanmean(found[~rises])


def test_a_span_without_anything_to_learn_is_refused():
    rising = replace(TRAIN, movement=torch.full_like(TRAIN.movement, 0.01))
    with pytest.raises(DtmlError, match="have the same direction"):
        fit_classifier("gradient_boosting", rising, VALIDATION, "all", seed=0)
