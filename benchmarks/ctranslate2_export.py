"""Export a Transformer to CTranslate2, which translates without torch and with 8-bit weights.

`python -m benchmarks.ctranslate2_export MODEL --to FOLDER [--int8]`: MODEL is the folder of a model
that `dtml translate train` has made. Needs the extra ctranslate2. Prints how many sentences of the
model's first test set are translated, greedily, as ours are. Position tables are exported too:
those that CTranslate2 computes put all sines before the cosines.
"""

import argparse
from collections.abc import Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor, nn

from flows.translating.models import named_test
from translation.atomic_files import write_folder_whole
from translation.data.tokenizer import BEGIN, END, PAD, UNKNOWN
from translation.decoding.beam_search import GREEDY, Search, search
from translation.errors import TranslationError, UsageError
from translation.models import Model, load_model
from translation.transformer import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    Residual,
    Transformer,
    TransformerConfig,
    sinusoids,
)

# The largest 8-bit weight. CPUs without 8-bit dot products (VNNI) add two products of an
# activation, up to 255, and a weight in 16 bits, and saturate: 2 * 255 * 127 overflows, 2 * 255 *
# 64 does not.
MAX_INT8 = 64
COMPARED = 200  # sentences
POSITIONS = 2048  # of the sinusoids: CTranslate2 rejects longer sentences


def export_ctranslate2(
    network: Transformer,
    config: TransformerConfig,
    pieces: Sequence[str],
    folder: Path,
    *,
    int8: bool,
    target_pieces: Sequence[str] | None = None,
) -> None:
    """Write `network` to `folder`, new or empty, as a model of CTranslate2.

    `pieces` is the source vocabulary by token number, and the target's too without `target_pieces`.
    The `ctranslate2.Translator` takes a sentence as its pieces alone and adds begin and end itself.
    It translates as our search does at alpha 0 with `length_penalty=0`, `min_decoding_length=0`,
    `disable_unk=True` and `suppress_sequences` of padding and begin. With `int8` the matrices have
    8 bits, which lose no more on one CPU than on another (see `MAX_INT8`), otherwise float32.
    Raises UsageError without the extra `ctranslate2`, for a network without LayerNorm, for
    vocabularies of another size and for a folder in use.
    """
    target = pieces if target_pieces is None else target_pieces
    try:
        specs = import_module("ctranslate2.specs")
    except ImportError as error:
        raise UsageError("CTranslate2 is not installed: pip install -e '.[ctranslate2]'") from error
    _check(config, pieces, target, folder)
    spec = specs.TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers), config.heads, pre_norm=config.norm == "pre"
    )
    spec.encoder.embeddings[0].weight = _array(network.embed_source.tokens.weight)
    spec.decoder.embeddings.weight = _array(network.embed_target.tokens.weight)
    spec.decoder.projection.weight = spec.decoder.embeddings.weight
    _set_layers(spec.encoder, network.encoder, network.encoder_norm, _positions(network))
    _set_layers(spec.decoder, network.decoder, network.decoder_norm, _positions(network))
    spec.register_source_vocabulary(list(pieces))
    spec.register_target_vocabulary(list(target))
    spec.config.unk_token = pieces[UNKNOWN]
    spec.config.bos_token = pieces[BEGIN]
    spec.config.eos_token = pieces[END]
    spec.config.decoder_start_token = target[BEGIN]
    spec.config.add_source_eos = True
    if int8:
        _quantise(spec)
    spec.validate()
    spec.optimize()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        spec.save(str(folder))
    except OSError as error:
        raise TranslationError(
            f"cannot write the model to {folder}: {error.strerror}; free it or name another"
        ) from error


def export_model(model: Model, folder: Path, *, int8: bool) -> None:
    """Export a model with its vocabularies, `source.model` and `target.model`, atomically.

    Raises what `export_ctranslate2` does, and UsageError for a network that is not a Transformer.
    """
    network = model.network
    if not isinstance(network, Transformer):
        kind = f"a {model.card.kind}"
        if len(model.networks) > 1:
            kind = f"an ensemble of {len(model.networks)}"
        raise UsageError(f"{model.card.name} is {kind}: CTranslate2 runs single Transformers only")
    config = TransformerConfig(**model.card.network)
    pieces = model.source.pieces(range(model.source.size))
    target = model.target.pieces(range(model.target.size))
    _check_free(folder)

    def fill(partial: Path) -> None:
        export_ctranslate2(network, config, pieces, partial, int8=int8, target_pieces=target)
        (partial / "source.model").write_bytes(model.source.model)
        (partial / "target.model").write_bytes(model.target.model)

    try:
        write_folder_whole(folder, fill)
    except OSError as error:
        raise TranslationError(f"cannot write {folder}: {error.strerror}; name another") from error


def open_exported(folder: Path, *, threads: int = 0, kind: str = "default") -> Any:
    """Open a `ctranslate2.Translator`; 0 threads are all.

    `kind` is the type of its arithmetic, by default that of its weights.
    """
    return import_module("ctranslate2").Translator(
        str(folder), device="cpu", compute_type=kind, inter_threads=1, intra_threads=threads
    )


def translate_exported(
    translator: Any, model: Model, rows: Sequence[Sequence[int]], how: Search
) -> list[list[int]]:
    """Return the best translation of each row of source tokens, as by our search at alpha 0."""
    pieces = model.target.pieces(range(model.target.size))
    numbers = {piece: number for number, piece in enumerate(pieces)}
    results = translator.translate_batch(
        [model.source.pieces(row) for row in rows],
        beam_size=how.beams,
        length_penalty=0,
        min_decoding_length=0,
        disable_unk=True,
        suppress_sequences=[[pieces[PAD]], [pieces[BEGIN]]],
        max_batch_size=how.batch_tokens,
        batch_type="tokens",
    )
    best = [result.hypotheses[0] for result in results]
    return [[numbers[piece] for piece in translation] for translation in best]


def agreement(model: Model, folder: Path, rows: Sequence[Sequence[int]]) -> int:
    """Return how many rows of source tokens the exported model translates exactly as ours does.

    Both search greedily. A translation without end is cut at our search's limit.
    """
    theirs = translate_exported(open_exported(folder), model, rows, GREEDY)
    ours = search(model.network, rows, GREEDY, device=model.device)
    same = 0
    for row, their_translation, our_hypotheses in zip(rows, theirs, ours, strict=True):
        limit = len(row) + GREEDY.extra
        same += list(our_hypotheses[0].tokens) == their_translation[:limit]
    return same


def _check(
    config: TransformerConfig, source: Sequence[str], target: Sequence[str], folder: Path
) -> None:
    """Raise UsageError for a network, vocabularies or a folder that cannot be exported."""
    if config.norm == "none":
        raise UsageError(
            'CTranslate2 has no Transformer without LayerNorm: train with norm "post" or "pre" to '
            "export it"
        )
    if config.shared_embeddings and list(source) != list(target):
        raise UsageError(
            "the network shares its embeddings, so source and target have one vocabulary: give "
            "that alone"
        )
    _check_size("source", source, config.source_vocabulary)
    _check_size("target", target, config.target_vocabulary)
    if list(source[UNKNOWN : END + 1]) != list(target[UNKNOWN : END + 1]):
        raise UsageError(
            "the vocabularies name unknown, begin and end (1, 2, 3) differently: CTranslate2 wants "
            "one name"
        )
    _check_free(folder)


def _check_size(side: str, pieces: Sequence[str], size: int) -> None:
    if len(pieces) != size:
        raise UsageError(
            f"the {side} vocabulary has {len(pieces)} pieces but the network {size}: give the "
            "network's own"
        )


def _check_free(folder: Path) -> None:
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UsageError(
            f"{folder} is not an empty folder: choose a new one for the CTranslate2 model"
        )


def _quantise(spec: Any) -> None:
    """Replace each matrix by integers up to `MAX_INT8` and a scale for each row.

    That is the format of CTranslate2.
    """
    for name, weight in spec.variables().items():
        scope, _, kind = name.rpartition("/")
        layer = import_module("ctranslate2.specs.model_spec").index_spec(spec, scope)
        if hasattr(layer, f"{kind}_scale"):
            largest = np.abs(weight).max(axis=1, keepdims=True)
            scale = MAX_INT8 / np.where(largest > 0, largest, 1)
            setattr(layer, kind, np.rint(weight * scale).astype(np.int8))
            setattr(layer, f"{kind}_scale", scale[:, 0].astype(np.float32))


def _set_layers(
    spec: Any, layers: nn.ModuleList, final_norm: nn.Module, positions: "ndarray[Any, Any]"
) -> None:
    spec.position_encodings.encodings = positions
    our_layers = cast(Sequence[EncoderLayer | DecoderLayer], layers)
    for layer, ours in zip(spec.layer, our_layers, strict=True):
        _set_self_attention(layer.self_attention, ours.attention, ours.around_attention)
        if isinstance(ours, DecoderLayer):
            _set_memory_attention(
                layer.attention, ours.memory_attention, ours.around_memory_attention
            )
        _set_feed_forward(layer.ffn, ours.feed_forward, ours.around_feed_forward)
    if not isinstance(final_norm, nn.Identity):
        _set_norm(spec.layer_norm, final_norm)


def _set_self_attention(spec: Any, attention: MultiHeadAttention, around: Residual) -> None:
    _set_norm(spec.layer_norm, around.layer_norm)
    _set_linear(spec.linear[0], attention.project_qkv.weight, attention.project_qkv.bias)
    _set_linear(spec.linear[1], *_weights(attention.project_output))


def _set_memory_attention(spec: Any, attention: MultiHeadAttention, around: Residual) -> None:
    """Split the packed projection: queries are the target's, keys and values the memory's."""
    weight, bias = _weights(attention.project_qkv)
    width = weight.shape[1]
    _set_norm(spec.layer_norm, around.layer_norm)
    _set_linear(spec.linear[0], weight[:width], bias[:width])
    _set_linear(spec.linear[1], weight[width:], bias[width:])
    _set_linear(spec.linear[2], *_weights(attention.project_output))


def _set_feed_forward(spec: Any, feed_forward: FeedForward, around: Residual) -> None:
    _set_norm(spec.layer_norm, around.layer_norm)
    _set_linear(spec.linear_0, *_weights(feed_forward.expand))
    _set_linear(spec.linear_1, *_weights(feed_forward.contract))


def _set_linear(spec: Any, weight: Tensor, bias: Tensor) -> None:
    spec.weight = _array(weight)
    spec.bias = _array(bias)


def _set_norm(spec: Any, norm: nn.Module) -> None:
    weight, bias = _weights(norm)
    spec.gamma = _array(weight)
    spec.beta = _array(bias)


def _weights(module: nn.Module) -> tuple[Tensor, Tensor]:
    return module.get_parameter("weight"), module.get_parameter("bias")


def _positions(network: Transformer) -> "ndarray[Any, Any]":
    """Return the table of positions, `[positions, d_model]`."""
    learned = network.embed_source.learned
    if learned is not None:
        return _array(learned.weight)
    width = network.embed_source.tokens.embedding_dim
    return _array(sinusoids(torch.arange(POSITIONS), width))


def _array(weight: Tensor) -> "ndarray[Any, Any]":
    # A copy: CTranslate2 rounds to 8 bits in place.
    array: ndarray[Any, Any] = weight.detach().cpu().float().numpy().copy()
    return array


def compared_sources(model: Model) -> list[str]:
    """Return sentences to compare the engines on, of the first test set whose files still exist."""
    for name in model.card.made["tests"]:
        corpus = named_test(model.card, name)
        files = [file for file in (corpus.source, corpus.target) if file is not None]
        if all(file.exists() for file in files):
            return [source for source, _ in islice(corpus.pairs(), COMPARED)]
    return []


def main(arguments: Sequence[str] | None = None) -> None:
    """Export the model of a folder and compare it with ours."""
    parser = argparse.ArgumentParser(description="Export a Transformer to CTranslate2.")
    parser.add_argument("model", type=Path, help="the folder of a model")
    parser.add_argument("--to", type=Path, required=True, help="the folder to write, new or empty")
    parser.add_argument(
        "--int8", action="store_true", help="8-bit weights: smaller and faster, other results"
    )
    options = parser.parse_args(arguments)
    model = load_model(options.model, torch.device("cpu"))
    export_model(model, options.to, int8=options.int8)
    print(f"{model.card.name} written to {options.to}, its vocabularies beside it")
    sources = compared_sources(model)
    if not sources:
        print("none of its test sets is here: no translation was compared")
        return
    same = agreement(model, options.to, model.source.encode_all(sources))
    print(f"{same} of {len(sources)} sentences of its test are translated, greedily, as here")


if __name__ == "__main__":
    main()
