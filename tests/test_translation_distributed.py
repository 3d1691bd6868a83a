"""Laws of distributed training: all processes end with the same weights, those that one process would learn."""

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.made_translations import LAST_WEIGHTS, trained
from translation.errors import UsageError
from translation.training.checkpoints import read_tensors
from translation.training.distributed import SINGLE_PROCESS, join_process_group
from translation.training.loop import Check

MEMBER = """
import sys
from pathlib import Path
from tests.made_translations import LAST_WEIGHTS, WIDTH, drawn, examples
from translation.training.checkpoints import save_weights
from translation.training.distributed import join_process_group
from translation.training.loop import TrainingContext, train_network
folder = Path(sys.argv[1])
process_group, device = join_process_group("cpu")
network, losses = drawn(dropout=0.0), []
tell = lambda check: losses.append((check.train_loss, check.validation_loss))
context = TrainingContext(folder=folder, key="made", device=device, process_group=process_group, on_check=tell)
train_network(network, WIDTH, examples(), examples(2, 24), LAST_WEIGHTS, context)
save_weights(folder / f"rank{process_group.rank}.safetensors", network.state_dict())
if process_group.rank == 0:
    (folder / "losses.txt").write_text("\\n".join(f"{one} {other}" for one, other in losses))
"""


def free_port() -> int:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            return int(server.getsockname()[1])
    except OSError as error:
        pytest.skip(f"no port on the loopback device: {error}")


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without torch.distributed")
def test_two_processes_learn_what_one_learns_of_both_their_batches(tmp_path: Path) -> None:
    root, script = Path(__file__).parents[1], tmp_path / "member.py"
    script.write_text(MEMBER)
    place = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        *place,
        str(script),
        str(tmp_path),
    ]
    env = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    one, other = (read_tensors(tmp_path / f"rank{rank}.safetensors")[0] for rank in (0, 1))
    assert all(torch.equal(one[name], other[name]) for name in one)
    alone: list[Check] = []
    trained(tmp_path / "alone", replace(LAST_WEIGHTS, accumulate=2), on_check=alone.append, dropout=0.0)
    told = [float(each) for each in (tmp_path / "losses.txt").read_text().split()]
    assert told == pytest.approx(
        [each for check in alone for each in (check.train_loss, check.validation_loss)], rel=1e-3
    )


def test_a_process_without_torchrun_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert join_process_group("cpu") == (SINGLE_PROCESS, torch.device("cpu"))
    assert SINGLE_PROCESS.reduce_gradients(torch.nn.Linear(1, 1), (2.5, 3, True)) == (2.5, 3, True)
    assert SINGLE_PROCESS.broadcast(0.1) == 0.1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_gpu_that_is_not_there_is_the_users_mistake() -> None:
    with pytest.raises(UsageError, match="no CUDA device"):
        join_process_group("cuda")


def test_more_processes_than_gpus_are_refused_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for name, told in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, told)
    with pytest.raises(UsageError, match="process 2 finds 1 CUDA devices"):
        join_process_group("cuda")
