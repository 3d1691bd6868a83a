"""The commands that make past nights again."""

import typer

replays = typer.Typer()
