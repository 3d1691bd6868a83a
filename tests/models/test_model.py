"""Laws of DTML: what may see what."""

from dataclasses import replace

import pytest
import torch

from dtml.model import DTML, ModelConfig
from tests.support.bounds import assert_close_in_float64

DAYS, STOCKS, WINDOW, FEATURES, HIDDEN = 5, 7, 3, 11, 26
CONFIG = ModelConfig(features=FEATURES, hidden=HIDDEN, heads=2, beta=0.3, dropout=0.0)


def make(config=CONFIG, seed=0):
    torch.manual_seed(seed)
    model = DTML(config, STOCKS).double().eval()
    with torch.no_grad():
        model.normalise.gain.normal_()
        model.normalise.offset.normal_()
    return model


def run(model, stocks, index, observed, *, need_attention=False):
    """Call the model on whole windows: `stocks` [days stocks window features],
    `index` [days window features].
    """
    together = torch.cat([stocks, index.unsqueeze(1)], dim=1)
    positions = torch.arange(len(stocks) * WINDOW).view(-1, WINDOW)
    return model(
        together.movedim(1, 2).flatten(0, 1), positions, observed, need_attention=need_attention
    )


@pytest.fixture
def day_inputs():
    torch.manual_seed(11)
    stocks = torch.randn(DAYS, STOCKS, WINDOW, FEATURES, dtype=torch.float64)
    index = torch.randn(DAYS, WINDOW, FEATURES, dtype=torch.float64)
    return stocks, index, torch.ones(DAYS, STOCKS, dtype=torch.bool)


def test_days_do_not_see_each_other(day_inputs):
    stocks, index, observed = day_inputs
    model = make()
    before = run(model, stocks, index, observed)[0]
    stocks[2] += 1.0
    index[2] -= 1.0
    after = run(model, stocks, index, observed)[0]
    changed = (before != after).any(dim=1)
    assert changed.tolist() == [False, False, True, False, False]


def test_stocks_are_interchangeable_with_their_own_gains(day_inputs):
    stocks, index, observed = day_inputs
    model, moved = make(), make()
    order = torch.randperm(STOCKS)
    with torch.no_grad():
        moved.normalise.gain.copy_(model.normalise.gain[order])
        moved.normalise.offset.copy_(model.normalise.offset[order])
    expected = run(model, stocks, index, observed)[0][:, order]
    assert_close_in_float64(run(moved, stocks[:, order], index, observed[:, order])[0], expected)


def test_shared_gains_serve_a_universe_of_any_size(day_inputs):
    stocks, index, observed = day_inputs
    torch.manual_seed(0)
    model = DTML(replace(CONFIG, normalisation="shared"), STOCKS).double().eval()
    order = torch.randperm(STOCKS)
    expected = run(model, stocks, index, observed)[0][:, order]
    assert_close_in_float64(run(model, stocks[:, order], index, observed[:, order])[0], expected)
    assert run(model, stocks[:, :5], index, observed[:, :5])[0].shape == (DAYS, 5)


def test_beta_zero_removes_the_index(day_inputs):
    stocks, index, observed = day_inputs
    without, with_index = make(replace(CONFIG, beta=0.0)), make()
    moved = index + 1
    assert (
        run(without, stocks, index, observed)[0] == run(without, stocks, moved, observed)[0]
    ).all()
    assert (
        run(with_index, stocks, index, observed)[0] != run(with_index, stocks, moved, observed)[0]
    ).all()


def test_padding_is_inert(day_inputs):
    stocks, index, observed = day_inputs
    model = make()
    present = torch.tensor([True, True, False, True, True, True, False])
    observed &= present
    before = run(model, stocks, index, observed)[0][:, present]
    stocks[:, ~present] = 1e6 * torch.randn_like(stocks[:, ~present])
    after = run(model, stocks, index, observed)[0][:, present]
    assert torch.equal(before, after)
    smaller = make()
    for parameter in (smaller.normalise.gain, smaller.normalise.offset):
        parameter.data = parameter.data[present]
    alone = run(smaller, stocks[:, present], index, observed[:, present])[0]
    assert_close_in_float64(alone, after)


@pytest.mark.parametrize("data_axis", [False, True])
def test_which_other_stock_moved_is_seen_through_the_data_axis_alone(day_inputs, data_axis):
    """Swapping two stocks' windows keeps the mean and the deviation of eq. 3:
    without the axis no third can tell.
    """
    stocks, index, observed = day_inputs
    model = make(replace(CONFIG, data_axis=data_axis))
    swapped = stocks.clone()
    swapped[:, [2, 5]] = stocks[:, [5, 2]]
    others = torch.tensor([0, 1, 3, 4, 6])
    before, after = (run(model, seen, index, observed)[0][:, others] for seen in (stocks, swapped))
    assert torch.allclose(before, after, rtol=0, atol=1e-12) is not data_axis


def test_attention_is_asymmetric_sums_to_one_and_changes_no_prediction(day_inputs):
    stocks, index, observed = day_inputs
    observed[:, 3] = False
    model = make()
    logits, attention = run(model, stocks, index, observed, need_attention=True)
    assert_close_in_float64(logits[observed], run(model, stocks, index, observed)[0][observed])
    assert attention.shape == (DAYS, 2, STOCKS, STOCKS)
    assert_close_in_float64(attention.sum(-1), torch.ones(DAYS, 2, STOCKS, dtype=torch.float64))
    assert (attention[..., 3] == 0).all()
    assert not torch.allclose(attention, attention.mT)


def test_the_whole_network_is_the_equations_written_out(day_inputs):
    """Day by day, stock by stock, with loops where the model has tensors; one
    head, one stock that is not observed.
    """
    stocks, index, observed = day_inputs
    observed[:, 5] = False
    model = make(replace(CONFIG, heads=1))
    found = run(model, stocks, index, observed)[0]
    for day in range(DAYS):
        seen = [u for u in range(STOCKS) if observed[day, u]]
        contexts = torch.stack([context_of(model, stocks[day, u]) for u in seen])  # h~^c
        deviation = (
            (contexts - contexts.mean()).square().mean() + 1e-5
        ).sqrt()  # over all stocks and units of the day
        gain, offset = model.normalise.gain[seen], model.normalise.offset[seen]
        h = (
            gain * (contexts - contexts.mean()) / deviation
            + offset
            + CONFIG.beta * context_of(model, index[day])
        )
        query, key, value = model.mix.attention.project_qkv(h).chunk(3, dim=-1)
        mixed = h + (query @ key.T / HIDDEN**0.5).softmax(-1) @ value
        hidden = model.mix.feed_forward.expand(mixed).relu()
        h_p = torch.tanh(mixed + model.mix.feed_forward.contract(hidden))
        assert_close_in_float64(found[day, seen], model.predict(h_p).squeeze(-1))


def context_of(model, window):
    transformed = torch.tanh(window @ model.transform.weight.T + model.transform.bias)
    states = model.lstm(transformed.unsqueeze(1), torch.arange(WINDOW).unsqueeze(0))[:, 0, 0]
    weights = torch.softmax(torch.stack([state @ states[-1] for state in states]), dim=0)
    return sum(weight * state for weight, state in zip(weights, states, strict=True))
