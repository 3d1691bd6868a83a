"""Which device computes: the one that trains sooner, unless the user names one."""

import os
from dataclasses import replace

import pytest
import torch

from dtml import devices
from dtml.devices import CPU_UNIT_S, GPU_STEP_S, GPU_UNIT_S, Load, choose_device
from dtml.errors import DtmlError
from dtml.experiments import vary
from dtml.published import SETS
from dtml.ranking.relative import RelativeConfig
from flows.translating.models import DEMO, device_for
from tests.support.bounds import in_float64
from translation.recipes import read_recipe

ACL18 = SETS["acl18"].recipes["dtml"]
LONG = Load.of(ACL18.model, ACL18.training, seeds=10, days=398, stocks=87, window=ACL18.window)
SHORT = RelativeConfig().load(stocks=30)


@pytest.fixture
def _gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(devices, "prepare_cuda", lambda: None)


@pytest.mark.usefixtures("_gpu")
@pytest.mark.parametrize(
    ("name", "loads", "chosen"),
    [
        ("auto", [LONG], "cuda"),
        ("auto", [SHORT], "cpu"),
        ("auto", [SHORT, LONG], "cuda"),
        ("auto", [], "cpu"),
        ("auto", None, "cuda"),
        ("cuda", [SHORT], "cuda"),
        ("cpu", [LONG], "cpu"),
    ],
)
def test_a_gpu_trains_what_takes_longer_on_the_cpu(name, loads, chosen):
    assert choose_device(name, loads) == torch.device(chosen)


def test_a_load_counts_the_steps_of_a_configuration_once_and_the_stocks_of_a_step():
    units = 10 * 200 * 398 * 87 * 10 * 64
    assert LONG.core_seconds == in_float64(units * CPU_UNIT_S)
    assert LONG.gpu_seconds == in_float64(200 * 7 * GPU_STEP_S + units * GPU_UNIT_S)
    drawn = replace(ACL18.training, stocks_a_step=29)
    third = Load.of(ACL18.model, drawn, seeds=10, days=398, stocks=87, window=ACL18.window)
    assert third.core_seconds == in_float64(LONG.core_seconds / 3)


@pytest.mark.usefixtures("_gpu")
def test_a_gpu_trains_a_translator_that_reads_much():
    demo = read_recipe(DEMO)
    longer = replace(demo, training=demo.training | {"updates": 100_000})
    minutes = replace(demo, training={"minutes": 1.0})
    assert [device_for(each, "auto") for each in (demo, longer, minutes)] == ["cpu", "cpu", "cuda"]
    large = replace(demo, network={}, size="small", training={"updates": 1000})
    assert device_for(large, "auto") == "cuda"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_device_that_is_not_there_is_an_error():
    assert choose_device("auto", [LONG]) == torch.device("cpu")
    with pytest.raises(DtmlError, match="no CUDA device"):
        choose_device("cuda")


@pytest.mark.usefixtures("_gpu")
def test_the_nights_of_a_market_compute_where_their_model_trains_sooner(context):
    tonight = replace(context, device="auto")
    assert tonight.place == torch.device("cpu")
    longer = replace(tonight, experiment=vary(context.experiment, {"hidden": 1024, "epochs": 200}))
    assert longer.place == torch.device("cuda")


@pytest.mark.parametrize(
    "words",
    [
        ("ranking", "simulated", "--from", "2025-11-03", "--to", "2026-10-30"),
        ("benchmark", "ranking", "--prices", "."),
        ("benchmark", "csi300"),
    ],
)
def test_a_ranking_has_a_device_for_its_networks_alone(command, words):
    code, _, error = command(*words, "--device", "cuda")
    assert (code, "leave out --device" in error) == (2, True)
    if not torch.cuda.is_available():
        code, _, error = command(*words, "--device", "cuda", "--with", "lstm")
        assert code != 0
        assert "leave out --device" not in error
