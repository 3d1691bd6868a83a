"""Every network by name; a new one is a file with its config, and a line here."""

from collections.abc import Mapping

from dtml.baselines.recurrent import RecurrentConfig
from dtml.baselines.stocknet import StockNetConfig
from dtml.model import ModelConfig
from dtml.network import NetworkConfig

NETWORKS: Mapping[str, NetworkConfig] = {
    config.name: config
    for config in (
        ModelConfig(),
        RecurrentConfig(attention=False),
        RecurrentConfig(),
        RecurrentConfig(epsilon=0.01, adversarial=0.01),
        StockNetConfig(),
    )
}
# The classes by their names, which checkpoints hold.
CONFIGS: Mapping[str, type[NetworkConfig]] = {
    type(config).__name__: type(config) for config in NETWORKS.values()
}
