"""A network exported to CTranslate2 says, token by token, what our own search says."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.ctranslate2_export import export_ctranslate2
from translation.decoding.beam_search import Search, search
from translation.decoding.incremental import IncrementalTransformer
from translation.errors import TranslationError, UsageError
from translation.transformer import Transformer, TransformerConfig

pytestmark = pytest.mark.slow

VOCABULARY, SENTENCES, EXTRA, STEPS, BATCH = 60, 40, 30, 200, 32
PIECES = ["<pad>", "<unk>", "<s>", "</s>", *(f"_{number}" for number in range(4, VOCABULARY))]
OTHERS = [*PIECES[:4], *(f"~{number}" for number in range(4, VOCABULARY - 7))]
SMALL = TransformerConfig(
    VOCABULARY,
    VOCABULARY,
    d_model=32,
    heads=4,
    d_ff=48,
    encoder_layers=3,
    decoder_layers=2,
    dropout=0.1,
)
KINDS = {
    "as published": SMALL,
    "pre-norm": replace(SMALL, norm="pre"),
    "learned positions": replace(SMALL, learned_positions=64),
    "two vocabularies": replace(SMALL, target_vocabulary=len(OTHERS), shared_embeddings=False),
}


@cache
def build_network(config: TransformerConfig) -> Transformer:
    """A network that has half learned to say a sentence backwards: it ends
    where it likes, and is in doubt.
    """
    torch.manual_seed(0)
    network, words = config.build(), config.target_vocabulary - 4
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(STEPS):
        length = int(torch.randint(1, 12, ()))
        source = torch.randint(4, VOCABULARY, (BATCH, length))
        target = 4 + (source.flip(-1) - 4) % words
        begin, end = (torch.full((BATCH, 1), special) for special in (2, 3))
        decoded, _ = network(torch.cat([source, end], dim=-1), torch.cat([begin, target], dim=-1))
        expected = torch.cat([target, end], dim=-1).flatten()
        loss = nn.functional.cross_entropy(network.logits(decoded).flatten(0, 1), expected)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return network.eval()


def sources() -> list[list[int]]:
    random = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 12, (SENTENCES,), generator=random).tolist()
    return [
        torch.randint(4, VOCABULARY, (length,), generator=random).tolist() for length in lengths
    ]


def exported(
    network: Transformer, config: TransformerConfig, folder: Path, *, int8: bool
) -> list[str]:
    """Write the network; the pieces of its target vocabulary."""
    target = PIECES if config.shared_embeddings else OTHERS
    export_ctranslate2(
        network,
        config,
        PIECES,
        folder,
        int8=int8,
        target_pieces=None if config.shared_embeddings else OTHERS,
    )
    return target


def translator_of(folder: Path, compute_type: str = "float32") -> Any:
    ctranslate2 = pytest.importorskip(
        "ctranslate2", reason="the extra ctranslate2 is not installed"
    )
    return ctranslate2.Translator(
        str(folder), device="cpu", compute_type=compute_type, intra_threads=1
    )


def translated(translator: Any, beams: int) -> list[list[str]]:
    found = translator.translate_batch(
        pieces_of(sources()),
        beam_size=beams,
        length_penalty=0,
        min_decoding_length=0,
        max_decoding_length=11 + EXTRA,
        disable_unk=True,
        suppress_sequences=[["<pad>"], ["<s>"]],
    )
    return [each.hypotheses[0] for each in found]


def pieces_of(sentences: list[list[int]], pieces: Sequence[str] = PIECES) -> list[list[str]]:
    return [[pieces[token] for token in sentence] for sentence in sentences]


def ours(network: Transformer, beams: int) -> list[list[int]]:
    found = search(
        IncrementalTransformer(network), sources(), Search(beams=beams, alpha=0.0, extra=EXTRA)
    )
    return [list(hypotheses[0].tokens) for hypotheses in found]


@torch.no_grad()
def log_probabilities(network: Transformer, source: list[int], target: list[int]) -> Tensor:
    """Of each token of `target` and of END."""
    decoded, _ = network(torch.tensor([[*source, 3]]), torch.tensor([[2, *target]]))
    return network.logits(decoded)[0].log_softmax(dim=-1)[
        torch.arange(len(target) + 1), [*target, 3]
    ]


@pytest.mark.soak
@pytest.mark.one_case("as published")
@pytest.mark.parametrize("kind", KINDS)
def test_ctranslate2_gives_every_token_the_probability_that_we_give_it(
    kind: str, tmp_path: Path
) -> None:
    pytest.importorskip("ctranslate2", reason="the extra ctranslate2 is not installed")
    config = KINDS[kind]
    network = build_network(config)
    pieces = exported(network, config, tmp_path / "model", int8=False)
    targets = [[4 + token % (len(pieces) - 4) for token in source * 3] for source in sources()]
    found = translator_of(tmp_path / "model").score_batch(
        pieces_of(sources()), pieces_of(targets, pieces)
    )
    for source, target, theirs in zip(sources(), targets, found, strict=True):
        expected = log_probabilities(network, source, target)
        # 48 terms to a score of 10, in five layers: 1.4e-4 if all errors of 6e-8 had one sign.
        torch.testing.assert_close(torch.tensor(theirs.log_probs), expected, rtol=1e-4, atol=1.4e-4)


@pytest.mark.soak
@pytest.mark.one_case
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beams", [1, 5])
def test_ctranslate2_says_what_our_search_says(kind: str, beams: int, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="the extra ctranslate2 is not installed")
    config = KINDS[kind]
    network = build_network(config)
    pieces = exported(network, config, tmp_path / "model", int8=False)
    expected, found = ours(network, beams), translated(translator_of(tmp_path / "model"), beams)
    assert len({len(tokens) for tokens in expected}) > 3  # they end at places of their own
    pairs = list(zip(sources(), expected, found, strict=True))
    # those that ended of themselves
    pairs = [pair for pair in pairs if len(pair[1]) < len(pair[0]) + EXTRA]
    assert len(pairs) > 0.7 * SENTENCES
    others = [(pair[0], pair[1], [pieces.index(piece) for piece in pair[2]]) for pair in pairs]
    differing = [(source, mine, theirs) for source, mine, theirs in others if mine != theirs]
    assert len(differing) <= (0 if beams == 1 else 2)
    for (
        source,
        mine,
        theirs,
    ) in differing:  # with a beam CTranslate2 may look on where our search has seen enough
        assert (
            log_probabilities(network, source, theirs).sum()
            > log_probabilities(network, source, mine).sum()
        )


@pytest.mark.soak
def test_with_weights_of_8_bits_every_token_is_about_as_probable_and_the_file_is_smaller(
    tmp_path: Path,
) -> None:
    pytest.importorskip("ctranslate2", reason="the extra ctranslate2 is not installed")
    network = build_network(SMALL)
    sizes = {}
    for name, int8 in (("int8", True), ("float32", False)):
        exported(network, SMALL, tmp_path / name, int8=int8)
        sizes[name] = (tmp_path / name / "model.bin").stat().st_size
    positions = 2048 * SMALL.d_model * 4  # which stay float32
    assert sizes["int8"] - positions < 0.45 * (sizes["float32"] - positions)
    targets = [source * 3 for source in sources()]
    found = translator_of(tmp_path / "int8", "int8").score_batch(
        pieces_of(sources()), pieces_of(targets)
    )
    for source, target, theirs in zip(sources(), targets, found, strict=True):
        expected = log_probabilities(network, source, target)
        # nats; 0.25 where sums of 16 bits are cut
        assert (torch.tensor(theirs.log_probs) - expected).abs().mean() < 0.2


def test_without_the_extra_it_is_said_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2.specs", None)
    with pytest.raises(UsageError, match=r"pip install -e '\.\[ctranslate2\]'"):
        export_ctranslate2(SMALL.build(), SMALL, PIECES, tmp_path / "model", int8=False)


def test_what_cannot_be_exported_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="the extra ctranslate2 is not installed")
    bare, two = replace(SMALL, norm="none"), KINDS["two vocabularies"]
    folder = tmp_path / "model"
    with pytest.raises(UsageError, match="without LayerNorm"):
        export_ctranslate2(bare.build(), bare, PIECES, folder, int8=False)
    with pytest.raises(UsageError, match=r"source .*59 pieces .*network 60"):
        export_ctranslate2(SMALL.build(), SMALL, PIECES[:-1], folder, int8=False)
    with pytest.raises(UsageError, match=r"target .*60 pieces .*network 53"):
        export_ctranslate2(two.build(), two, PIECES, folder, int8=False)
    with pytest.raises(UsageError, match="shares its embeddings"):
        export_ctranslate2(SMALL.build(), SMALL, PIECES, folder, int8=False, target_pieces=OTHERS)
    renamed = ["<pad>", "<unk>", "<s>", "<end>", *OTHERS[4:]]
    with pytest.raises(UsageError, match="differently"):
        export_ctranslate2(two.build(), two, PIECES, folder, int8=False, target_pieces=renamed)
    assert not folder.exists()
    (folder / "inside").mkdir(parents=True)
    with pytest.raises(UsageError, match="not an empty folder"):
        export_ctranslate2(SMALL.build(), SMALL, PIECES, folder, int8=False)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="the extra ctranslate2 is not installed")
    (tmp_path / "file").write_text("")
    with pytest.raises(TranslationError, match="cannot write the model"):
        export_ctranslate2(SMALL.build(), SMALL, PIECES, tmp_path / "file" / "model", int8=False)
