"""The commands of translation: train a model, translate, score, and work off the queue of texts."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from flows.commands.options import AsJson, DeviceOption

translations = typer.Typer(
    name="translate", help="Translation jobs on the Transformer that DTML shares its attention with."
)
ModelOption = Annotated[
    str | None, typer.Option("--model", help="A model that `dtml translate models` lists; by default the only one.")
]
Beams = Annotated[int, typer.Option(min=1, help="Translations followed side by side; 1 is a greedy search.")]
Alpha = Annotated[float, typer.Option(min=0.0, help="Length penalty; 0 prefers short translations.")]


@translations.command()
def train(
    config: Annotated[Path, typer.Argument(help="What to train from and how: a TOML file.")],
    processes: Annotated[
        int,
        typer.Option(min=1, help="Processes that share each update, as many as GPUs or cores."),
    ] = 1,
    device: DeviceOption = "auto",
    as_json: AsJson = False,
) -> None:
    """Train a model of the corpora that a TOML file names; interrupted, it goes on when called again.

    Example: dtml translate train multi30k.toml --processes 4
    """
    from flows.commands.translate_work import train_recipe

    train_recipe(config, device, processes, as_json=as_json)


@translations.command()
def text(
    texts: Annotated[list[str], typer.Argument(help="Texts to translate; - reads one a line from standard input.")],
    model: ModelOption = None,
    beams: Beams = 5,
    alpha: Alpha = 0.6,
    best: Annotated[int, typer.Option(min=1, help="How many translations of each text, with their scores.")] = 1,
    attention: Annotated[
        Path | None, typer.Option(help="Write a page that shows which source pieces each piece looked at.")
    ] = None,
    device: DeviceOption = "auto",
    as_json: AsJson = False,
) -> None:
    """Translate texts, and print a line for each.

    Example: dtml translate text "A dog runs through the snow." --model multi30k-en-de
    """
    from flows.commands.translate_work import translate_texts

    translate_texts(texts, model, (beams, alpha, best), attention, device, as_json=as_json)


@translations.command()
def file(
    source: Annotated[Path, typer.Argument(help="A text, plain or gzip, a sentence a line.")],
    to: Annotated[Path, typer.Option("--to", help="Where the translations go, a line for each line.")],
    model: ModelOption = None,
    beams: Beams = 5,
    alpha: Alpha = 0.6,
    device: DeviceOption = "auto",
) -> None:
    """Translate a file line by line; interrupted, it goes on with the first line that is not done.

    Example: dtml translate file captions.en.txt --to captions.de.txt --model multi30k-en-de
    """
    from flows.commands.translate_work import translate_file

    translate_file(source, to, model, (beams, alpha), device)


@translations.command()
def score(
    test: Annotated[str, typer.Argument(help="A test set of the model's recipe, or a file of sources (or a TSV).")],
    references: Annotated[Path | None, typer.Option(help="The translations to compare with, a line a source.")] = None,
    columns: Annotated[
        tuple[int, int], typer.Option(help="Of a TSV: the columns of the source and the target, from 0 on.")
    ] = (0, 1),
    model: ModelOption = None,
    against: Annotated[str | None, typer.Option(help="Another model to compare with on the same test.")] = None,
    beams: Beams = 5,
    alpha: Alpha = 0.6,
    device: DeviceOption = "auto",
    as_json: AsJson = False,
) -> None:
    """Score a model on a test set: sacreBLEU with its signature and interval, chrF, and against another model.

    Example: dtml translate score flickr2016 --model multi30k-en-de --against multi30k-rnn
    """
    from flows.commands.translate_work import score_model

    score_model((test, references, columns), model, against, (beams, alpha), device, as_json=as_json)


@translations.command()
def queue(
    texts: Annotated[list[str] | None, typer.Argument(help="Texts to queue.")] = None,
    file: Annotated[Path | None, typer.Option(help="Queue each line of a text, plain or gzip.")] = None,
    model: ModelOption = None,
    priority: Annotated[int, typer.Option(help="Higher ones are translated first.")] = 0,
) -> None:
    """Queue texts for a worker; an INSERT into the table translation_text does the same.

    Example: dtml translate queue "A man rides a bike." --model multi30k-en-de
    """
    from flows.commands.translate_work import fill_queue

    fill_queue(texts or [], file, model, priority)


@translations.command()
def work(
    models: Annotated[list[str] | None, typer.Option("--model", help="Texts of this model alone; repeatable.")] = None,
    beams: Beams = 5,
    alpha: Alpha = 0.6,
    attention: Annotated[bool, typer.Option("--attention", help="Keep the attention of each translation.")] = False,
    device: DeviceOption = "auto",
) -> None:
    """Translate what is queued until nothing is left. `dtml serve` does it every five minutes.

    Example: dtml translate work
    """
    from flows.commands.translate_work import empty_queue

    empty_queue(models or [], (beams, alpha), device, attention=attention)


@translations.command()
def jobs(
    model: ModelOption = None,
    status: Annotated[
        Literal["queued", "taken", "done", "failed"] | None, typer.Option(help="Texts of this status alone.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many texts, newest first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the queue: how many texts wait, are under way, done or failed, and the newest of them.

    Example: dtml translate jobs --status failed
    """
    from flows.commands.translate_work import show_jobs

    show_jobs(model, status, limit, as_json=as_json)


@translations.command()
def models(as_json: AsJson = False) -> None:
    """List the models with their languages, sizes, scores and receipts.

    Example: dtml translate models
    """
    from flows.commands.translate_work import show_models

    show_models(as_json=as_json)


@translations.command()
def demo(device: DeviceOption = "auto") -> None:
    """Train a tiny model on a made-up language pair, in about a minute, and translate with it.

    Example: dtml translate demo
    """
    from flows.commands.translate_work import run_demo

    run_demo(device)


@translations.command()
def export(
    model: Annotated[str, typer.Argument(help="A model that `dtml translate models` lists.")],
    to: Annotated[Path, typer.Option("--to", help="The folder to write.")],
    form: Annotated[Literal["ctranslate2"], typer.Option("--format", help="Whose format.")] = "ctranslate2",
    int8: Annotated[bool, typer.Option("--int8", help="Weights of 8 bits: smaller and quicker, not the same.")] = False,
) -> None:
    """Write a model for another program to run; needs the extra `ctranslate2`.

    Example: dtml translate export multi30k-en-de --to exported --int8
    """
    from flows.commands.translate_work import export_for

    export_for(model, to, form, int8=int8)
