"""StockNet: its equations, what its objective learns from, and what its predictions may not see."""

from dataclasses import replace

import pytest
import torch

from dtml.baselines.stocknet import StockNet, StockNetConfig, past_movements
from dtml.network import Dropout, use_generator
from tests.support.batches import NOTHING, WINDOW, batch_of, drawn, logits, random
from tests.support.bounds import assert_close_in_float64, float64_by_default, in_float64  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("float64_by_default")

SMALL_STOCKNET = StockNetConfig(hidden=17, latent=19, movement=23)
POSTERIOR_STOCKNET = replace(SMALL_STOCKNET, posterior_past=True)


def stocknet(seed=0):
    network = drawn(SMALL_STOCKNET, seed)
    assert isinstance(network, StockNet)
    return network


def test_stocknet_predicts_from_prior_means_and_never_from_a_label():
    network, batch = stocknet().eval(), batch_of()
    first = logits(network, batch)
    with torch.no_grad():
        for parameter in network.posterior.parameters():
            parameter.fill_(float("nan"))
    assert torch.equal(logits(network, batch), first)
    network.train()
    network.dropout.rate = 0.0
    assert torch.equal(network.logits(batch.rows, batch.windows, batch.observed), first)


def test_stocknet_can_predict_with_what_the_past_movements_say_of_the_past():
    network, batch = drawn(POSTERIOR_STOCKNET), batch_of()
    assert isinstance(network, StockNet)
    x = batch.rows[batch.windows.mT, :-1]
    decoded = network.eval().decode(x, past_movements(x))
    assert decoded.posterior is not None
    assert_close_in_float64(decoded.latent[:-1], decoded.posterior.mean)
    prior = network.prior(torch.cat([x[-1], decoded.hidden[-1]], dim=-1))
    assert_close_in_float64(decoded.latent[-1], prior.mean)
    assert not torch.allclose(logits(network, batch), logits(drawn(SMALL_STOCKNET), batch))


def test_the_objective_of_stocknet_is_its_equation_written_out_for_one_stock_day():
    network, batch = stocknet().eval(), batch_of()._replace(step=torch.tensor(60.0))
    day, stock = (int(i) for i in batch.counted.nonzero()[0])
    only = torch.zeros_like(batch.counted)
    only[day, stock] = True
    x = batch.rows[batch.windows[day], stock]
    y = torch.cat([x[1:, 4] > 0, batch.rises[day, stock].unsqueeze(0)]).float()
    h, z, g, kl = torch.zeros(17), torch.zeros(19), [], []
    for t in range(WINDOW):
        r, u = network.gates(torch.cat([x[t], h, z])).sigmoid().split(17)
        h = (1 - u) * h + u * network.candidate(torch.cat([x[t], r * h, z])).tanh()
        q, p = (
            network.posterior(torch.cat([x[t], h, y[t : t + 1]])),
            network.prior(torch.cat([x[t], h])),
        )
        z = q.mean
        g.append(network.decode_movement(torch.cat([x[t], h, z])).tanh())
        one, other = (
            torch.distributions.Normal(n.mean, (n.log_variance / 2).exp()) for n in (q, p)
        )
        kl.append(torch.distributions.kl_divergence(one, other).sum())
    auxiliary = [torch.sigmoid(network.predict_auxiliary(each))[0] for each in g[:-1]]
    attention = network.attention
    v = torch.stack(
        [
            (attention.information.weight[0] @ (attention.project_information.weight @ each).tanh())
            * (g[-1] @ (attention.project_dependency.weight @ each).tanh())
            for each in g[:-1]
        ]
    ).softmax(dim=0)
    target = torch.sigmoid(
        network.predict(torch.cat([(v @ torch.stack(auxiliary)).unsqueeze(0), g[-1]]))
    )[0]
    likelihood = [(p if y[t] else 1 - p).log() for t, p in enumerate([*auxiliary, target])]
    terms = [likelihood[t] - 0.3 * kl[t] for t in range(WINDOW)]
    expected = -terms[-1] - 0.5 * sum(v[t] * terms[t] for t in range(WINDOW - 1))
    assert_close_in_float64(
        network.objective(batch._replace(counted=only), torch.tensor(1.0)), expected
    )


def test_the_divergence_is_weighed_from_nothing_to_everything():
    steps = torch.tensor([0.0, 1.0, 100.0, 200.0, 5000.0])
    weights = [float(stocknet().kl_weight(step)) for step in steps]
    assert weights == in_float64([0, 0.005, 0.5, 1, 1])


def test_latents_are_noisy_in_training_alone_and_their_noise_is_the_generators():
    network, batch = stocknet(), batch_of()
    for module in network.modules():
        if isinstance(module, Dropout):
            module.rate = 0.0
    found = []
    for seed in (3, 3, 5):
        use_generator(network.train(), random(seed))
        torch.manual_seed(len(found))
        found.append(network.objective(batch, NOTHING))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert torch.equal(network.eval().objective(batch, NOTHING), network.objective(batch, NOTHING))
