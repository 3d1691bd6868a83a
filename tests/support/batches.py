"""Made batches for the networks: days in which a stock's last return tells its next one."""

import torch
from torch import Tensor

from dtml.network import Batch, Network, NetworkConfig, use_generator

SESSIONS, STOCKS, WINDOW, FEATURES, DAYS = 29, 13, 5, 11, 7
NOTHING = torch.tensor(0.0)


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(config: NetworkConfig, seed: int = 0) -> Network:
    """A network whose weights and random numbers come from a seed of its own."""
    network, generator = config.build(STOCKS), random(seed)
    network.initialise(generator)
    use_generator(network, generator)
    return network


def batch_of(seed: int = 0, days: int = DAYS, sessions: int = SESSIONS) -> Batch:
    """Days whose stocks rise as a rule iff they fell in the last session of the window."""
    generator = random(seed)
    rows = torch.randn(sessions, STOCKS + 1, FEATURES, generator=generator)
    last = torch.randperm(sessions - WINDOW + 1, generator=generator)[:days] + WINDOW - 1
    surprise = torch.rand(days, STOCKS, generator=generator) < 0.1
    counted = torch.rand(days, STOCKS, generator=generator) < 0.8
    rises = (rows[last, :-1, 4] < 0) ^ surprise
    return Batch(
        rows=rows,
        windows=last.unsqueeze(1) + torch.arange(1 - WINDOW, 1),
        observed=counted | (torch.rand(days, STOCKS, generator=generator) < 0.5),
        rises=rises,
        counted=counted,
        step=torch.tensor(0.0),
        movement=rises.float() - 0.5,
    )


def logits(network: Network, batch: Batch) -> Tensor:
    return network.eval().logits(batch.rows, batch.windows, batch.observed)
