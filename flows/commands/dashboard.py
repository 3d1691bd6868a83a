"""The command that serves the prediction history as pages."""

from typing import Annotated

import typer

dashboards = typer.Typer()


@dashboards.command()
def dashboard(
    host: Annotated[str, typer.Option(help="Address or name to listen on; there is no login.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8050,
) -> None:
    """Serve the prediction history as pages to browse, read-only, on this machine; Ctrl-C ends it.

    Example: dtml dashboard --port 8051
    """
    from flows.commands.dashboard_server import serve_dashboard

    serve_dashboard(host, port)
