"""Laws of distributed training: all processes end with the same weights, those
that one process would learn.
"""

import os
import socket
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support.bounds import float64_by_default, in_float32  # noqa: F401 - a fixture
from tests.support.places import ROOT
from tests.support.translations import LAST_WEIGHTS, trained
from translation.errors import UsageError
from translation.training import distributed
from translation.training.checkpoints import read_weights
from translation.training.distributed import ProcessGroup, join_process_group
from translation.training.loop import Check, share

# Dropout, batches an update and their positions: a batch that is cut, one each with its dropout,
# one pair for both.
RECIPES = ((0.0, 1, 512), (0.1, 2, 512), (0.0, 1, 1))
MEMBER = f"""
import sys
from dataclasses import replace
from pathlib import Path
import torch
from tests.support.translations import LAST_WEIGHTS, WIDTH, drawn, examples
from translation.training.checkpoints import save_weights
from translation.training.distributed import join_process_group
from translation.training.loop import TrainingContext, train_network

torch.set_default_dtype(torch.float64)
folder = Path(sys.argv[1])
RECIPES = {RECIPES}
process_group, device = join_process_group("cpu")
for dropout, accumulate, tokens in RECIPES:
    network, losses = drawn(dropout=dropout), []
    tell = lambda check: losses.append((check.train_loss, check.validation_loss))
    own = folder / f"{{accumulate}}-{{tokens}}"
    own.mkdir(exist_ok=True)
    context = TrainingContext(
        folder=own, key="made", device=device, process_group=process_group, on_check=tell
    )
    config = replace(LAST_WEIGHTS, accumulate=accumulate, batch_tokens=tokens)
    train_network(network, WIDTH, examples(), examples(2, 24), config, context)
    save_weights(own / f"rank{{process_group.rank}}.safetensors", network)
    if process_group.rank == 0:
        (own / "losses.txt").write_text("\\n".join(f"{{one}} {{other}}" for one, other in losses))
"""


def free_port():
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            return int(server.getsockname()[1])
    except OSError as error:
        pytest.skip(f"no port on the loopback device: {error}")


@pytest.mark.soak
@pytest.mark.usefixtures("float64_by_default")
@pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch was built without torch.distributed"
)
def test_a_recipe_learns_the_same_in_two_processes_as_in_one(tmp_path):
    script = tmp_path / "member.py"
    script.write_text(MEMBER)
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    env = os.environ | told | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path)],
            cwd=ROOT,
            env=env | {"RANK": rank, "LOCAL_RANK": rank},  # what torchrun tells its processes
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    for process in processes:
        _, complaint = process.communicate(timeout=550)
        assert process.returncode == 0, complaint
    for dropout, accumulate, tokens in RECIPES:
        made, alone = tmp_path / f"{accumulate}-{tokens}", list[Check]()
        one, other = (read_weights(made / f"rank{rank}.safetensors") for rank in (0, 1))
        # What was kept, and comes back to the first process, is float32.
        assert all(torch.equal(one[name].float(), other[name].float()) for name in one)
        config = replace(LAST_WEIGHTS, accumulate=accumulate, batch_tokens=tokens)
        trained(made / "alone", config, on_check=alone.append, dropout=dropout)
        told = [float(each) for each in (made / "losses.txt").read_text().split()]
        expected = [each for check in alone for each in (check.train_loss, check.validation_loss)]
        assert told == in_float32(expected)  # losses are summed over processes in float32


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 7, 11])
def test_the_processes_share_the_pairs_of_an_update_and_none_is_read_twice(world_size):
    batches = [np.arange(0, 13), np.arange(13, 15), np.arange(15, 32)]
    shares = [share(batches, ProcessGroup(rank, world_size)) for rank in range(world_size)]
    parts = [part for each in shares for part in each]
    assert sorted(row for _, part in parts for row in part) == list(range(32))
    assert len({number for number, _ in parts}) == len(parts)  # each part has dropout of its own
    # two pairs are too few for five processes
    assert max(map(len, shares)) - min(map(len, shares)) <= 2
    if world_size <= len(batches):  # the dropout of a batch is that of one process
        assert all(np.array_equal(part, batches[number]) for number, part in parts)


@pytest.mark.slow
def test_more_processes_than_gpus_are_refused_in_a_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(distributed, "prepare_cuda", lambda: None)  # sets options of the process
    for name, told in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, told)
    with pytest.raises(UsageError, match=r"2 .*no CUDA device,.* 1:"):
        join_process_group("cuda")


def test_summed_gradients_stay_in_the_tensors_that_recorded_work_adds_to(monkeypatch):
    network = torch.nn.Linear(3, 2)
    network(torch.ones(1, 3)).sum().backward()
    gradients = [each.grad for each in network.parameters()]
    before = [each.clone() for each in gradients]
    addresses = [each.data_ptr() for each in gradients]
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor: tensor.mul_(2))
    loss = torch.tensor(1.5, dtype=torch.float64)
    assert ProcessGroup(world_size=2).reduce_gradients(network, loss, 7) == (3.0, 14)
    for gradient, once in zip(gradients, before, strict=True):
        assert torch.equal(gradient, 2 * once)
    assert [each.grad.data_ptr() for each in network.parameters()] == addresses
