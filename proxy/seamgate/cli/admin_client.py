"""How the commands `reload` and `status` talk to a running gateway: its admin listener, over a unix socket or loopback.

Where that is says `--admin`, else the configuration file. One request a call; nothing is retried.
"""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from seamgate.config import load_config, split_admin
from seamgate.errors import ConfigError, PrerequisiteMissing, TargetError

TIMEOUT_S = 60.0
"""For a reload of very large policies; everything else is answered at once."""

F = TypeVar("F", bound=Callable[..., Any])


def where(function: F) -> F:
    """Add the options that say which gateway is meant."""
    admin = click.option(
        "--admin",
        "admin",
        envvar="SEAMGATE_ADMIN",
        default="",
        metavar="PLACE",
        help="unix:/path or 127.0.0.1:port of its admin listener. [env: SEAMGATE_ADMIN; else as in the configuration]",
    )
    config = click.option(
        "-c",
        "--config",
        "config_path",
        envvar="SEAMGATE_CONFIG",
        default="seamgate.yaml",
        show_default=True,
        type=click.Path(path_type=Path, dir_okay=False),
        help="The gateway's configuration. [env: SEAMGATE_CONFIG]",
    )
    return config(admin(function))


def find(admin: str, config_path: Path) -> tuple[str, int] | str:
    """Return the place of the admin listener: (address, port), or the path of a socket.

    Raises:
        ConfigError: none is named.
    """
    listen = admin.removeprefix("http://").removesuffix("/") or load_config(config_path).admin.listen
    if not listen:
        raise ConfigError(
            "there is no admin listener: add for example `admin: {listen: unix:admin.sock}` and restart the gateway, or"
            " name one with --admin",
            source=str(config_path),
        )
    try:
        return split_admin(listen)
    except TargetError as error:
        raise ConfigError(error.message) from None


def ask(place: tuple[str, int] | str, method: str, path: str) -> tuple[int, bytes]:
    """Return (status, body) of one request.

    Raises:
        PrerequisiteMissing: nobody answers there.
    """
    connection = _Unix(place) if isinstance(place, str) else http.client.HTTPConnection(*place, timeout=TIMEOUT_S)
    shown = f"unix:{place}" if isinstance(place, str) else f"{place[0]}:{place[1]}"
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read()
    except PermissionError:
        raise PrerequisiteMissing(f"{shown} is for the gateway's own user and root: use sudo") from None
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise PrerequisiteMissing(f"no gateway answers at {shown}: {why}; is it running?") from None
    finally:
        connection.close()


def problem_of(body: bytes) -> str:
    """Return the message of a refusal."""
    try:
        told = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return "it answered something that is not of a gateway"
    return str(told.get("error", "")) if isinstance(told, dict) else ""


class _Unix(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self._path)
