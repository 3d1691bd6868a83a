"""Laws of a model's folder: it translates as the model did, and whatever is
wrong with it is one line.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.made_language import made_pairs
from tests.support.translations import CPU, NETWORK, PAIRS, drawn, model_of, same, tokenizer
from translation.cards import CONFIG
from translation.decoding.beam_search import GREEDY
from translation.errors import TranslationError, UsageError
from translation.models import SOURCE, TARGET, WEIGHTS, Model, load_model, save_model
from translation.training.checkpoints import read_weights
from translation.translate import translate

SIZE = tokenizer().size
SAID = NETWORK | {"source_vocabulary": SIZE, "target_vocabulary": SIZE}
OTHER = tokenizer(330)
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "joint": ("transformer", SAID),
    "two vocabularies": (
        "transformer",
        SAID | {"target_vocabulary": OTHER.size, "shared_embeddings": False},
    ),
    "learned positions": ("transformer", SAID | {"learned_positions": 250}),
    "rnn": ("rnn", {"source_vocabulary": SIZE, "target_vocabulary": SIZE, "d_model": 16}),
}
TEXTS = [source for source, _ in made_pairs(4, 9)]


def made(name: str = "joint") -> Model:
    kind, values = KINDS[name]
    return model_of(
        drawn(3, kind, **values), kind, values, target=OTHER if name == "two vocabularies" else None
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(tmp_path / "made", made())
    return tmp_path / "made"


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_model_read_again_translates_the_same(tmp_path: Path, name: str) -> None:
    model = made(name)
    card = save_model(tmp_path, model)
    again = load_model(tmp_path, CPU)
    assert again.card == card
    assert same(again.network, model.network)
    assert translate(again, TEXTS, GREEDY) == translate(model, TEXTS, GREEDY)
    written = read_weights(tmp_path / WEIGHTS)
    assert len(written) == len({each.data_ptr() for each in model.network.state_dict().values()})


def test_weights_that_are_no_numbers_are_named_before_saving(folder: Path) -> None:
    before, model = load_model(folder, CPU), made()
    name, parameter = list(model.network.named_parameters())[-1]
    with torch.no_grad():
        parameter.view(-1)[0] = float("nan")
    said = rf"not saved: 1 of {parameter.numel()} weights .*{name} .*NaN .*; train "
    with pytest.raises(TranslationError, match=said):
        save_model(folder, model)
    assert same(load_model(folder, CPU).network, before.network)


def test_a_joint_model_takes_the_place_of_one_with_two_vocabularies(tmp_path: Path) -> None:
    save_model(tmp_path, made("two vocabularies"))
    save_model(tmp_path, made())
    assert load_model(tmp_path, CPU).target.digest == tokenizer().digest


def refused(folder: Path, kind: type[TranslationError] = TranslationError) -> str:
    with pytest.raises(kind) as told:
        load_model(folder, CPU)
    assert type(told.value) is kind
    assert "\n" not in str(told.value)
    return str(told.value)


def test_a_changed_byte_of_the_weights_is_noticed(folder: Path) -> None:
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-3] ^= 1
    (folder / WEIGHTS).write_bytes(data)
    assert "damaged since" in refused(folder)


@pytest.mark.parametrize("name", [SOURCE, TARGET])
def test_another_tokenizer_is_noticed(tmp_path: Path, name: str) -> None:
    save_model(tmp_path, made("two vocabularies"))
    tokenizer(340).save(tmp_path / name)
    assert f"{name} is not that of the training run" in refused(tmp_path)


@pytest.mark.parametrize("name", [WEIGHTS, SOURCE])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert name in refused(folder)


def test_a_folder_without_a_card_is_no_model(folder: Path) -> None:
    (folder / CONFIG).unlink()
    assert "no model in" in refused(folder, UsageError)
    assert "no model in" in refused(folder / "none", UsageError)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"name": "x"}', "\udcff"])
def test_a_damaged_card_is_told_in_a_line(folder: Path, text: str) -> None:
    (folder / CONFIG).write_bytes(text.encode(errors="surrogateescape"))
    assert "damaged" in refused(folder)


CARDS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown kind": ({"kind": "oracle"}, "of network 'oracle'"),
    "unknown key": ({"network": SAID | {"depth": 3}}, "does not fit"),
    "no whole heads": ({"network": SAID | {"heads": 3}}, "multiple of heads"),
    "no table": ({"network": 5}, "does not fit"),
}


@pytest.mark.parametrize("name", CARDS)
def test_a_card_of_a_network_that_cannot_be_is_told_in_a_line(folder: Path, name: str) -> None:
    change, words = CARDS[name]
    card = json.loads((folder / CONFIG).read_text()) | change
    (folder / CONFIG).write_text(json.dumps(card))
    assert words in refused(folder, UsageError)


def test_a_card_of_another_width_is_told_in_a_line(folder: Path) -> None:
    card = json.loads((folder / CONFIG).read_text()) | {"network": SAID | {"d_model": 32}}
    (folder / CONFIG).write_text(json.dumps(card))
    assert "not fit the network" in refused(folder)


@pytest.mark.parametrize("step", ["save_weights", "sha256"])
def test_an_end_while_saving_leaves_the_model_that_was_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def ended(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(f"translation.models.{step}", ended)
        with pytest.raises(KeyboardInterrupt):
            save_model(folder, made())
    assert load_model(folder, CPU).card.made == {"pairs": PAIRS, "seeds": 1}
    card = save_model(folder, made())
    assert load_model(folder, CPU).card == card
    assert [each.name for each in folder.parent.iterdir()] == [folder.name]
