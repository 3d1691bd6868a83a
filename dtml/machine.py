"""Name what computes: the versions, the processor and the device that decide the last bits."""

import platform
from importlib.metadata import version
from pathlib import Path

import torch

PACKAGES = ("numpy", "pandas", "scikit-learn")
PROCESSORS = Path("/proc/cpuinfo")  # absent on systems other than Linux


def computed_by(device: torch.device) -> str:
    """Return what computes on a device here, as `name value` pairs separated by `, `.

    As `dtml 0.1.0, Python 3.12.3, torch 2.9.0, ..., processor AMD EPYC 7B13 (AVX2), device cpu`.
    """
    pairs = {"dtml": version("dtml-nightshift"), "Python": platform.python_version()}
    pairs["torch"] = torch_build()
    for package in PACKAGES:
        pairs[package] = version(package)
    model = platform.machine()  # the architecture, where the system does not tell the model
    if PROCESSORS.exists():
        for line in PROCESSORS.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                model = value.strip()
                break
    instructions = torch.backends.cpu.get_cpu_capability()
    # A comma would look like the end of a pair to `_pairs`.
    pairs["processor"] = f"{model.replace(',', ' ')} ({instructions})"
    if device.type != "cuda":
        pairs["device"] = device.type
    else:
        pairs["device"] = f"{device.type} {torch.cuda.get_device_name(device)}"
    return ", ".join(f"{name} {value}" for name, value in pairs.items())


def torch_build() -> str:
    """Return the version of torch with its build, such as 2.11.0+cu130, which pip may not know."""
    return str(torch.__version__)


def changes(then: str | None, now: str) -> str | None:
    """Say what differs between two texts of `computed_by` (`then` None: not recorded), or None."""
    if then is None:
        return "the versions and the processor that computed it are not recorded"
    pairs_then = _pairs(then)
    pairs_now = _pairs(now)
    found: list[str] = []
    for name in {**pairs_then, **pairs_now}:
        value_then = pairs_then.get(name, "not recorded")
        value_now = pairs_now.get(name, "not recorded")
        if value_then != value_now:
            found.append(f"{name} was {value_then}, is {value_now}")
    return "; ".join(found) or None


def is_by_cpu(text: str) -> bool:
    """Return whether a text of `computed_by` says that the CPU computed, and no GPU."""
    return _pairs(text).get("device") == "cpu"


def _pairs(text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for pair in text.split(", "):
        name, _, value = pair.partition(" ")
        pairs[name] = value
    return pairs
