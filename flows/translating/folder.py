"""Name the folders of models and of trainings, and choose a model, without torch."""

from pathlib import Path

from dtml.pages.figures import counted
from flows.settings import data_folder
from translation.cards import FILE, Card, read_card
from translation.errors import UsageError


def models_folder() -> Path:
    """Return the folder of the models, which has a folder for each."""
    return data_folder() / "translation"


def work_folder(name: str) -> Path:
    """Return the folder with the state from which the training of a model resumes."""
    return data_folder() / "training" / "translation" / name


def model_names() -> list[str]:
    """Return the names of the models whose training has finished."""
    model_files = models_folder().glob(f"[!.]*/{FILE}")
    return sorted(file.parent.name for file in model_files)


def chosen(name: str | None) -> Path:
    """Return the folder of the named or only model; raises UsageError where there is none such."""
    names = model_names()
    if not names:
        asked = "" if name is None else f" {name!r}"
        raise UsageError(
            f"there is no model{asked} in {models_folder()} yet: train one with `dtml translate "
            "train RECIPE.toml`, or run `dtml translate demo`"
        )
    if name is None and len(names) == 1:
        return models_folder() / names[0]
    if name not in names:
        asked = "" if name is None else f", and none is named {name!r}"
        raise UsageError(
            f"{models_folder()} has {counted(len(names), 'model')}{asked}: choose one of "
            f"{', '.join(names)} with --model"
        )
    return models_folder() / name


def cards() -> list[Card]:
    """Return the card of each model."""
    return [read_card(models_folder() / name) for name in model_names()]
