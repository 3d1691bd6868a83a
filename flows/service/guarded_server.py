"""Run Prefect's own server, only for users of this machine who know its login."""

import os
import signal
import socket
import sys
import time
from threading import Thread

import uvicorn
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

HOST = "127.0.0.1"  # localhost may also be ::1, where another program may have the port
END_LIMIT_S = 10  # for the server to record the last runs of tasks


def guarded(app: ASGIApp, origin: str) -> ASGIApp:
    """Return the application behind checks: Host 127.0.0.1, no page of another origin."""
    by_name = TrustedHostMiddleware(app, allowed_hosts=[HOST], www_redirect=False)

    async def by_origin(scope: Scope, receive: Receive, send: Send) -> None:
        origins = {value for name, value in scope.get("headers", ()) if name == b"origin"}
        if origins <= {origin.encode()}:
            await by_name(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            refusal = PlainTextResponse("this server rejects cross-origin requests", 403)
            await refusal(scope, receive, send)

    return by_origin


def main() -> None:
    """Serve Prefect's application on the inherited socket of argument 1, until orphaned."""
    listening = socket.socket(fileno=int(sys.argv[1]))
    origin = f"http://{HOST}:{listening.getsockname()[1]}"
    Thread(target=_end_with_parent, daemon=True).start()
    # By default Prefect allows every origin. It reads the variable once, when it is imported.
    os.environ["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] = origin
    from prefect.server.api.server import create_app

    config = uvicorn.Config(
        guarded(create_app(final=True), origin),
        lifespan="on",
        log_level="warning",
        # Half of the time is for open requests, half for the services of Prefect's server.
        timeout_graceful_shutdown=END_LIMIT_S // 2,
    )
    uvicorn.Server(config).run(sockets=[listening])


def _end_with_parent() -> None:
    # Standard input ends when the parent has. Not by sys.stdin: its buffer would be locked while
    # this waits, and Python could not exit.
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(END_LIMIT_S)
    os._exit(1)  # the signal has not ended it


if __name__ == "__main__":
    main()
