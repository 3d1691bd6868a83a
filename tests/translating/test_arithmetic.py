"""Which number format a training multiplies in: the one that the processor multiplies faster."""

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from translation.errors import UsageError
from translation.training import arithmetic, from_recipe
from translation.training.arithmetic import (
    WORTH_ROUNDING,
    Precision,
    bfloat16_gain,
    faster_format,
    format_of,
    slower_format_warning,
)
from translation.training.distributed import SINGLE_PROCESS
from translation.training.loop import TrainingConfig, training_step_of
from translation.training.step import Muon, orthogonal

CPU = torch.device("cpu")
SLOW, FAST = 0.08, 1.9  # gains as measured with AVX2 alone, and with instructions for bfloat16


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3))


@pytest.mark.parametrize(("gain", "taken"), [(SLOW, "float32"), (FAST, "bfloat16")])
def test_auto_takes_what_the_processor_multiplies_faster(
    gain: float, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arithmetic, "bfloat16_gain", lambda: gain)
    monkeypatch.setattr(from_recipe, "bfloat16_gain", lambda: gain)
    step = training_step_of(network(), TrainingConfig(optimiser="muon"), CPU, SINGLE_PROCESS)
    _, muon = step.optimisers
    assert isinstance(muon, Muon)
    assert (step.product_dtype, muon.product_dtype) == (getattr(torch, taken),) * 2
    said: list[object] = []
    config = from_recipe._auto_resolved(TrainingConfig(), CPU, SINGLE_PROCESS, said.append)
    assert (config.precision, config.muon_precision) == (taken, taken)
    (line,) = said
    assert re.match(rf"multiplies in {taken}: bfloat16 .* {gain:.1f} times .*float32", str(line))


@pytest.mark.parametrize(
    ("named", "gain", "warning"),
    [
        ("bfloat16", SLOW, "12.5 times as slowly"),
        ("float32", FAST, "1.9 times as slowly"),
        ("bfloat16", FAST, ""),
        ("float32", SLOW, ""),
        ("bfloat16", 1.1, ""),
        ("float32", 1.1, ""),
    ],
)
def test_a_named_format_is_taken_and_said_to_be_slow(
    named: Precision, gain: float, warning: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(from_recipe, "bfloat16_gain", lambda: gain)
    said: list[str] = []
    config = TrainingConfig(optimiser="muon", precision=named, muon_precision=named)
    taken = from_recipe._auto_resolved(
        config, CPU, SINGLE_PROCESS, lambda line: said.append(str(line))
    )
    assert taken.precision == named
    assert taken.muon_precision == named
    settings = ("precision", "muon_precision") if warning else ()
    assert said == [slower_format_warning(setting, named, gain) for setting in settings]
    assert warning in slower_format_warning("precision", named, gain)


def test_only_numbers_of_float32_are_ever_rounded_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "bfloat16_gain", lambda: FAST)
    assert format_of("auto", torch.float32) == "bfloat16"
    assert format_of("auto", torch.float64) == "float32"
    assert format_of("bfloat16", torch.float64) == "bfloat16"


def test_the_gain_is_measured_once_and_decides_at_its_bound() -> None:
    gain = bfloat16_gain()
    assert 0 < gain == bfloat16_gain()
    assert faster_format(WORTH_ROUNDING) == "bfloat16"
    assert faster_format(WORTH_ROUNDING - 0.01) == "float32"


@pytest.mark.parametrize("shape", [(3, 5, 7), (3, 7, 5)])
def test_muon_multiplies_in_the_format_that_it_is_given(shape: tuple[int, ...]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    exact = orthogonal(matrices.double(), torch.float64)
    for products in (torch.float32, torch.bfloat16):
        found = orthogonal(matrices, products)
        assert found.dtype == products
        # Each of five rounds may stretch an error 3.4 times where it is largest; measured 2 to 9.
        assert (found.double() - exact).abs().max() < 40 * torch.finfo(products).eps


def test_an_unknown_precision_is_refused_by_name() -> None:
    for name in ("precision", "muon_precision"):
        with pytest.raises(UsageError, match=rf"{name} .*auto, float32, bfloat16,.*half"):
            replace(TrainingConfig(), **{name: "half"})
