"""What the commands of translation do once their options are read."""

import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from db.engine import open_reader, reading, transaction
from db.rows import translation_queue, translations
from dtml.inference import choose_device
from flows.console import counted, print_frame, print_json
from flows.nightly.context import open_store
from flows.service.prefect_server import require_server
from flows.settings import data_folder, make_data_folder, out, prepare_torch
from flows.translating.files import translate_lines
from flows.translating.models import assist, cards, chosen, compared_sources, named_test, open_model, receipt, score_on
from translation.data.corpus import lines_of
from translation.decoding.beam_search import Search
from translation.errors import UsageError
from translation.models import Model
from translation.recipes import Recipe, read_recipe
from translation.training.distributed import launch_processes
from translation.translate import Translation, translate

log = logging.getLogger(__name__)


def train_recipe(config: Path, device: str, processes: int, *, as_json: bool) -> None:
    """Train the model of a TOML file; raises SystemExit with the code of a process that failed."""
    recipe = read_recipe(config)
    if processes == 1 or "RANK" in os.environ:
        _train(recipe, device, as_json=as_json)
        return
    told = ["translate", "train", str(config), "--device", device, *(["--json"] if as_json else [])]
    sys.exit(launch_processes([sys.executable, "-c", "from flows.cli import main; main()", *told], processes))


def _train(recipe: Recipe, device: str, *, as_json: bool = False) -> Model | None:
    make_data_folder()
    prepare_torch()
    if int(os.environ.get("RANK", "0")) > 0:  # of torchrun's processes the first has the flow
        assist(recipe, choose_device(device).type)
        return None
    require_server()
    from flows.translating.flow import train_translator

    trained, scores = train_translator(recipe, device, attended=True)
    card = trained.model.card
    if as_json:
        print_json({"model": card.name, "receipt": receipt(card), "scores": _named(scores)})
    else:
        steps, bleu = trained.progress.step, card.made["validation_bleu"]
        out.print(f"{card.name}: {card.size} {card.kind}, {card.languages}, {steps} steps, validation BLEU {bleu:.1f}")
        print_scores(scores)
        out.print(f'use it    dtml translate text "..." --model {card.name}', markup=False)
    return trained.model


def _named(scores: Any) -> dict[str, Any]:
    return {name: asdict(each) for name, each in scores.items()}


def print_scores(scores: Any) -> None:
    """A line a test set, and the signature that says how they were counted."""
    for name, each in scores.items():
        interval = f"[{each.low:.1f}, {each.high:.1f}]"
        said = f"{name}: BLEU {each.bleu:.1f} {interval}, chrF {each.chrf:.1f}, {counted(each.sentences, 'sentence')}"
        out.print(said, markup=False)
    for signature in sorted({each.signature for each in scores.values()}):
        out.print(signature, markup=False)


def translate_texts(
    texts: Sequence[str],
    name: str | None,
    choice: tuple[int, float, int],
    page: Path | None,
    device: str,
    *,
    as_json: bool,
) -> None:
    """Print the translation of each text."""
    place = choose_device(device)
    model = open_model(name, place)
    beams, alpha, best = choice
    how = search_of(max(beams, best), alpha, best=best, with_attention=page is not None)
    asked = [line for text in texts for line in (_input_lines() if text == "-" else [text])]
    found = translate(model, asked, how)
    if page is not None:
        from flows.translating.alignment_page import write_alignments

        write_alignments(page, model.card, asked, found)
    if as_json:
        print_json([_document(*each) for each in zip(asked, found, strict=True)])
        return
    for text, said in zip(asked, found, strict=True):
        _warn(text, said)
        for translation, score in said.best:
            line = " ".join(translation.splitlines())
            out.file.write(f"{line}\n" if best == 1 else f"{score:8.3f}  {line}\n")  # as it is: Rich would change some


def _input_lines() -> list[str]:
    """The lines of standard input; raises UsageError for one that is not UTF-8."""
    lines = [line.removesuffix(b"\n").removesuffix(b"\r") for line in sys.stdin.buffer]
    for number, line in enumerate(lines, start=1):
        try:
            line.decode()
        except UnicodeDecodeError as error:
            raise UsageError(f"standard input is not UTF-8 at line {number}: convert it to UTF-8") from error
    return [line.decode() for line in lines]


def search_of(beams: int, alpha: float, **more: Any) -> Search:
    """A search; raises UsageError for what it cannot be."""
    try:
        return Search(beams=beams, alpha=alpha, **more)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _document(text: str, said: Translation) -> dict[str, Any]:
    best = [{"text": translation, "score": score} for translation, score in said.best]
    return {"text": text, "translation": said.text, "score": said.score, "best": best, "warning": said.warning}


def _warn(text: str, said: Translation) -> None:
    if said.warning is not None:
        log.warning("%s: %s", text if len(text) < 60 else f"{text[:57]}...", said.warning)


def translate_file(source: Path, to: Path, name: str | None, choice: tuple[int, float], device: str) -> None:
    """Translate a file, line by line."""
    place = choose_device(device)
    model = open_model(name, place)
    done = translate_lines(model, source, to, search_of(*choice), receipt(model.card))
    out.print(f"{counted(done, 'line')} translated into {to}", markup=False)


def score_model(
    test: tuple[str, Path | None, tuple[int, int]],
    name: str | None,
    against: str | None,
    choice: tuple[int, float],
    device: str,
    *,
    as_json: bool,
) -> None:
    """Score a model, alone or against another, and store the scores."""
    place = choose_device(device)
    model = open_model(name, place)
    other = None if against is None else open_model(against, place)
    if other is not None and other.card.languages != model.card.languages:
        raise UsageError(f"{against} translates {other.card.languages}, but {model.card.name} {model.card.languages}")
    make_data_folder()
    corpus = named_test(model.card, *test)
    found, compared = score_on(model, corpus, search_of(*choice), open_store(), other)
    if as_json:
        print_json({"score": asdict(found), "against": against, "compared": compared and asdict(compared)})
        return
    print_scores({corpus.name: found})
    if compared is not None:
        interval = f"[{compared.low:+.1f}, {compared.high:+.1f}]"
        out.print(f"less {against}: {compared.difference:+.1f} {interval}, p = {compared.p:.3f}", markup=False)


def fill_queue(texts: Sequence[str], file: Path | None, name: str | None, priority: int) -> None:
    """Queue texts and the lines of a file."""
    queued = [*texts, *(lines_of(file) if file is not None else ())]
    if not queued:
        raise UsageError("nothing to queue: give texts, or --file")
    model = chosen(name).name
    make_data_folder()
    with transaction(open_store()) as conn:
        numbers = translation_queue.queue_texts(conn, model, queued, priority)
    out.print(f"{counted(len(numbers), 'text')} queued for {model}: {numbers[0]} to {numbers[-1]}", markup=False)


def empty_queue(models: Sequence[str], choice: tuple[int, float], device: str, *, attention: bool) -> None:
    """Empty the queue."""
    search_of(*choice)
    for model in models:
        chosen(model)
    require_server()
    from flows.translating.flow import in_words, translate_queue

    counts: Any = translate_queue(list(models), *choice, device=device, attention=attention, attended=True)
    out.print(in_words(counts), markup=False)


def show_jobs(name: str | None, status: str | None, limit: int, *, as_json: bool) -> None:
    """Print the queue."""
    engine = open_reader()
    with reading(engine) as conn:
        counts = translation_queue.queue_counts(conn)
        newest = translation_queue.newest(conn, name, status, limit)
    if as_json:
        print_json({"counts": counts, "texts": newest})
        return
    if counts.empty:
        out.print("The queue is empty: dtml translate queue TEXT --model NAME fills it.", markup=False)
        return
    print_frame(counts)
    print_frame(newest)


def show_models(*, as_json: bool) -> None:
    """Print the models of the data folder with their stored scores."""
    with reading(open_store()) as conn:
        scores = translations.scores(conn)
    rows = [
        {
            "model": card.name,
            "languages": card.languages,
            "size": f"{card.size} {card.kind}",
            "pairs": card.made["pairs"],
            "validation BLEU": card.made["validation_bleu"],
            "tests": _tests(scores, card.name),
            "receipt": receipt(card),
        }
        for card in cards()
    ]
    if as_json:
        print_json(rows)
    elif rows:
        import pandas as pd

        print_frame(pd.DataFrame(rows), formats={"validation BLEU": ".1f"})
    else:
        out.print("There is no model yet: dtml translate demo trains one in a minute.")


def _tests(scores: Any, name: str) -> str:
    alone = scores[(scores["model"] == name) & scores["against"].isna()]
    return ", ".join(f"{row.test} {row.bleu:.1f}" for row in alone.drop_duplicates("test", keep="last").itertuples())


def run_demo(device: str) -> None:
    """Train on a made-up pair of languages, and translate what the training never saw."""
    from flows.translating.demo import demo_recipe

    recipe, unseen = demo_recipe(data_folder() / "translation-demo")
    model = _train(recipe, device)
    if model is None:
        return
    for (source, expected), said in zip(unseen, translate(model, [each for each, _ in unseen], Search()), strict=True):
        out.print(
            f"{source}\n  {said.text}" + ("" if said.text == expected else f"\n  rightly: {expected}"), markup=False
        )


def export_for(name: str, to: Path, form: str, *, int8: bool) -> None:
    """Write a model for CTranslate2, and say how often it translates as we do."""
    from translation.ctranslate2_export import agreement, export_model

    model = open_model(name, torch.device("cpu"))
    export_model(model, to, int8=int8)
    out.print(f"{name} written to {to} for {form}, its vocabularies beside it", markup=False)
    sources = compared_sources(model)
    same = agreement(model, to, model.source.encode_all(sources)) if sources else 0
    said = f"{same} of {len(sources)} sentences of its test are translated, greedily, as here"
    out.print(said if sources else "none of its tests is there to compare translations on", markup=False)
