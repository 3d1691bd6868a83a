"""The command that serves the prediction history as pages, until Ctrl-C or SIGTERM."""

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
from flows.dashboard.explore import READER_LIMIT_S
from flows.settings import out, tell

commands = typer.Typer()

# Hosts that stand for all addresses of this machine.
EVERYWHERE = ("0.0.0.0", "[::]")  # noqa: S104 - only if the user asks for it, and with a warning
# The time after which a thread gives way to another. With Python's 0.005 s, the event loop would
# wait that long at each step while a thread renders a page.
SWITCH_S = 0.0005
END_LIMIT_S = 3  # for requests that are being answered when the command ends


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
    is_open = host_in_address not in LOOPBACK  # then others may reach the dashboard
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM then ends it as Ctrl-C does
    sys.setswitchinterval(SWITCH_S)
    # uvicorn raises KeyboardInterrupt again after it has shut down.
    with _listen(host, port) as listening, suppress(KeyboardInterrupt):
        # The names that a Host header may have.
        names = ["*"] if host_in_address in EVERYWHERE else [*LOOPBACK, host_in_address]
        app = dashboard(engine, names)
        address = f"http://{host_in_address}:{listening.getsockname()[1]}"
        out.print(f"{address}  {location(engine)}, read-only; press Ctrl-C to stop", soft_wrap=True)
        if is_open:
            tell(
                f"warning: anyone who can reach {host_in_address} can read everything: "
                "there is no login, so let a firewall keep others out"
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


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address; raises DtmlError where that cannot be.

    On Linux its connections end when a client takes longer than READER_LIMIT_S.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        # After " (while" Python repeats the address.
        reason = str(error.strerror or error).partition(" (while")[0]
        raise DtmlError(
            f"cannot listen on {host}, port {port}: {reason}; give another --port or --host"
        ) from error
    # Linux alone has this option, in milliseconds; elsewhere a client may take as long as it wants.
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * READER_LIMIT_S)
    return listening
