"""The command that serves the prediction history as pages, until it is told to end."""

import signal
import socket
import sys
from contextlib import suppress
from typing import Annotated

import typer
import uvicorn

from db.engine import location, open_reader
from dtml.errors import DtmlError
from flows.dashboard.app import LOOPBACK, dashboard
from flows.dashboard.downloads import READER_LIMIT_S
from flows.settings import err, out

commands = typer.Typer()

EVERYWHERE = ("0.0.0.0", "[::]")  # noqa: S104 - asked for by name; it has many names then, and a warning
# Python's 0.005 would be the wait of the event loop at each step while a page is made
SWITCH_S = 0.0005
END_LIMIT_S = 3  # for answers that are under way when the command is told to end


@commands.command("dashboard")
def serve_dashboard(
    host: Annotated[
        str, typer.Option(help="Address or host name to listen on; the dashboard has no login.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8050,
) -> None:
    """Serve the prediction history as read-only pages on this machine.

    Stop it with Ctrl-C.

    Example: dtml dashboard --port 8051
    """
    engine = open_reader()
    host_in_address = f"[{host}]" if ":" in host else host
    is_open = host_in_address not in LOOPBACK
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.setswitchinterval(SWITCH_S)
    # uvicorn raises an interrupt again when all is shut down.
    with _listen(host, port) as listening, suppress(KeyboardInterrupt):
        app = dashboard(engine, _allowed_hosts(host_in_address))
        address = f"http://{host_in_address}:{listening.getsockname()[1]}"
        out.print(f"{address}  {location(engine)}, read-only; press Ctrl-C to stop", soft_wrap=True)
        if is_open:
            err.print(
                f"warning: anyone who can reach {host_in_address} can read everything: "
                "there is no login",
                soft_wrap=True,
            )
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="error",
            access_log=False,
            timeout_graceful_shutdown=END_LIMIT_S,
        )
        uvicorn.Server(config).run(sockets=[listening])
    engine.dispose()
    out.print("ended")


def _allowed_hosts(host_in_address: str) -> list[str]:
    """Return the hosts that a request may name, for a dashboard that listens on one of them."""
    if host_in_address in EVERYWHERE:
        return ["*"]
    if host_in_address in LOOPBACK:
        return list(LOOPBACK)
    return [*LOOPBACK, host_in_address]


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address.

    The kernel cuts off a client that does not read what it is sent.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        # Python repeats the address there
        words = str(error.strerror or error).partition(" (while")[0]
        raise DtmlError(
            f"cannot listen on {host}, port {port}: {words}; give another --port or --host"
        ) from error
    # Linux alone has this option; elsewhere an answer waits for its reader without limit.
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * READER_LIMIT_S)
    return listening
