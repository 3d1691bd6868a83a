"""A network exported to CTranslate2 gives every token the probability that ours gives it."""

import sys
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

from benchmarks.ctranslate2_export import export_ctranslate2
from translation.errors import UsageError
from translation.transformer import TransformerConfig

pytestmark = [pytest.mark.slow, pytest.mark.soak]

VOCABULARY, SENTENCES, STEPS, BATCH = 60, 40, 200, 32
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


@pytest.fixture(autouse=True)
def _threads():
    """CTranslate2 sets the number of threads of the process, and with it of torch."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def batch_of(seed=None):
    """Sentences of one length, without END."""
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    length = int(torch.randint(1, 12, (), generator=generator))
    return torch.randint(4, VOCABULARY, (BATCH, length), generator=generator)


@cache
def build_network(config):
    """A network that has half learned to say a sentence backwards, and is in doubt."""
    torch.manual_seed(0)
    network, words = config.build(), config.target_vocabulary - 4
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
    begin, end = (torch.full((BATCH, 1), special) for special in (2, 3))
    for _ in range(STEPS):
        source = batch_of()
        target = 4 + (source.flip(-1) - 4) % words
        decoded, _ = network(torch.cat([source, end], dim=-1), torch.cat([begin, target], dim=-1))
        expected = torch.cat([target, end], dim=-1).flatten()
        loss = nn.functional.cross_entropy(network.logits(decoded).flatten(0, 1), expected)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return network.eval()


def exported(config, folder, **told):
    """Write a network of this configuration, with the pieces of its vocabularies."""
    target = None if config.shared_embeddings else OTHERS
    values = {"source_pieces": PIECES, "int8": False, "target_pieces": target} | told
    pieces = values.pop("source_pieces")
    export_ctranslate2(build_network(config), config, pieces, folder, **values)


@torch.no_grad()
def differences(config, folder, kind):
    """CTranslate2's log probabilities less ours, of each token of some targets and of END."""
    ctranslate2 = pytest.importorskip("ctranslate2", reason="the extra ctranslate2 is missing")
    theirs = ctranslate2.Translator(str(folder), compute_type=kind, intra_threads=1)
    network, pieces = build_network(config), PIECES if config.shared_embeddings else OTHERS
    found = []
    for seed in range(SENTENCES // 10):
        for source in batch_of(seed)[:10].tolist():
            target = [4 + token % (len(pieces) - 4) for token in source * 3]
            (scored,) = theirs.score_batch(
                [[PIECES[token] for token in source]], [[pieces[token] for token in target]]
            )
            decoded, _ = network(torch.tensor([[*source, 3]]), torch.tensor([[2, *target]]))
            ours = network.logits(decoded)[0].log_softmax(dim=-1)
            said = torch.tensor([*target, 3]).unsqueeze(-1)
            found.append(torch.tensor(scored.log_probs) - ours.gather(1, said).squeeze(-1))
    return torch.cat(found).abs()


@pytest.mark.one_case("as published")
@pytest.mark.parametrize("kind", KINDS)
def test_ctranslate2_gives_every_token_the_probability_that_we_give_it(kind, tmp_path):
    pytest.importorskip("ctranslate2", reason="the extra ctranslate2 is missing")
    exported(KINDS[kind], tmp_path / "model")
    # 48 terms to a score of 10, in five layers: 1.4e-4 if all errors of 6e-8 had one sign.
    assert differences(KINDS[kind], tmp_path / "model", "float32").max() < 1e-3


def test_with_weights_of_8_bits_every_token_is_about_as_probable_and_the_file_is_smaller(tmp_path):
    pytest.importorskip("ctranslate2", reason="the extra ctranslate2 is missing")
    positions = 2048 * SMALL.d_model * 4  # which stay float32
    sizes = []
    for int8 in (True, False):
        exported(SMALL, tmp_path / str(int8), int8=int8)
        sizes.append((tmp_path / str(int8) / "model.bin").stat().st_size - positions)
    assert sizes[0] < 0.45 * sizes[1]
    # nats; 0.25 where sums of 16 bits are cut
    assert differences(SMALL, tmp_path / "True", "int8").mean() < 0.2


def test_without_the_extra_it_is_said_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ctranslate2.specs", None)
    with pytest.raises(UsageError, match=r"pip install -e '\.\[ctranslate2\]'"):
        exported(SMALL, tmp_path / "model")


TWO = KINDS["two vocabularies"]
RENAMED = ["<pad>", "<unk>", "<s>", "<end>", *OTHERS[4:]]


@pytest.mark.parametrize(
    ("config", "told", "words"),
    [
        (replace(SMALL, norm="none"), {}, "without LayerNorm"),
        (SMALL, {"source_pieces": PIECES[:-1]}, "source .*59 pieces .*network 60"),
        (TWO, {"target_pieces": PIECES}, "target .*60 pieces .*network 53"),
        (SMALL, {"target_pieces": OTHERS}, "shares its embeddings"),
        (TWO, {"target_pieces": RENAMED}, "differently"),
    ],
    ids=str,
)
def test_what_cannot_be_exported_is_refused_and_leaves_nothing(
    tmp_path,
    monkeypatch,
    config,
    told,
    words,
):
    pytest.importorskip("ctranslate2", reason="the extra ctranslate2 is missing")
    monkeypatch.setattr(f"{__name__}.build_network", lambda config: config.build())
    with pytest.raises(UsageError, match=words):
        exported(config, tmp_path / "model", **told)
    assert not (tmp_path / "model").exists()
