"""The commands of a service: what runs by itself, and how it goes."""

import typer

services = typer.Typer()
