"""`seamgate serve`: the gateway as a service. Starts, says so, reloads on SIGHUP, stops on SIGTERM and SIGINT.

SIGUSR2 has a successor take its place (`seamgate.cli.succession`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from pathlib import Path

import click
import msgspec
import structlog
import uvloop

from seamgate import launch
from seamgate.audit.reading import last_generation
from seamgate.cli.banner import render_banner
from seamgate.cli.serve_check import check_config, tell_whether_it_loads
from seamgate.cli.succession import Successor, inheritance
from seamgate.config import MOST_WORKERS, load_config
from seamgate.errors import SeamgateError
from seamgate.exposure import find_exposure
from seamgate.gateway import Gateway
from seamgate.observe.logging import LEVELS, configure_logging
from seamgate.tasks import spawn
from seamgate.workers.supervisor import Supervisor

log = structlog.get_logger("seamgate.serve")


@click.command()
@click.option(
    "-c",
    "--config",
    "config_path",
    envvar="SEAMGATE_CONFIG",
    default="seamgate.yaml",
    show_default=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="How this gateway runs. [env: SEAMGATE_CONFIG]",
)
@click.option("--check", is_flag=True, help="Load everything, say whether it can be used, and exit.")
@click.option("--json", "as_json", is_flag=True, help="With --check: print one JSON object.")
@click.option("--log-format", type=click.Choice(["auto", "console", "json"]), default="auto", show_default=True)
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
@click.option("--grace", "grace_s", type=click.FloatRange(0), default=10.0, show_default=True, metavar="SECONDS",
              help="How long requests under way may go on after SIGTERM.")  # fmt: skip
@click.option(
    "--workers",
    type=click.IntRange(1, MOST_WORKERS),
    metavar="N",
    help="How many processes carry requests, instead of what the configuration says (`workers:`, 1).",
)
@click.pass_context
def serve(
    context: click.Context,
    config_path: Path,
    check: bool,
    as_json: bool,
    log_format: str,
    log_level: str,
    grace_s: float,
    workers: int | None,
) -> None:
    """Run the gateway.

    SIGHUP loads policies, credentials and plugins again, as `seamgate reload` does; what can't be used leaves all as
    it is. SIGTERM and SIGINT stop it once the requests under way are done; a second one cuts them. SIGUSR2 starts the
    same command again, with the code and configuration of now, and hands the listeners over to it.
    """
    if as_json and not check:
        raise click.UsageError("--json is for --check: a gateway that runs has `seamgate status --json`")
    configure_logging(log_format, log_level, color=context.color)  # type: ignore[arg-type]  # click.Choice checked it
    if check:
        tell_whether_it_loads(config_path, as_json=as_json)
        return
    inherited = inheritance()
    config = load_config(config_path)
    if workers is not None:
        config = msgspec.structs.replace(config, workers=workers)
    for finding in find_exposure(config):
        log.warning("the configuration is not safe", code=finding.code, problem=finding.message)
    gateway = Gateway(config) if config.workers == 1 else Supervisor(config, log_format=log_format, log_level=log_level)
    gateway.fixed_workers = workers
    launch.forbid_inspection()
    if inherited is not None:
        uvloop.run(check_config(config))
        inherited.await_turn()
        gateway.listeners.inherited = inherited.listening
    # After the turn of whoever came before: its last record tells where it stopped.
    gateway.go_on_after(last_generation(config.audit.file))
    uvloop.run(Service(config_path, gateway, grace_s, context.color).run())


class Service:
    """One gateway between its start and its stop."""

    def __init__(self, path: Path, gateway: Gateway, grace_s: float, color: bool | None) -> None:
        self._gateway = gateway
        if isinstance(gateway, Supervisor):
            gateway.on_fault = self._on_fault
        self._gateway.reload_path = path
        self._grace_s = grace_s
        self._color = color
        self._stopping = asyncio.Event()
        self._forced = asyncio.Event()
        self._started = False
        self._fault = False
        self._successor: Successor | None = None
        self._succeeding = False

    async def run(self) -> None:
        """Run until a signal says otherwise."""
        loop = asyncio.get_running_loop()
        # Before the start, so that a signal that comes early is obeyed after it instead of killing us within it.
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._on_reload)
        loop.add_signal_handler(signal.SIGUSR2, self._on_succeed)
        await self._gateway.start()
        self._started = True
        launch.settle_memory()
        if sys.stderr.isatty():
            click.echo(render_banner(self._gateway), err=True, color=self._color)
        notify("READY=1", f"STATUS=generation {self._gateway.seam.pipeline.generation}", f"MAINPID={os.getpid()}")
        await self._stopping.wait()
        if self._successor is None:
            notify("STOPPING=1")
        try:
            await self._stop()
        finally:
            self._let_go()
        if self._fault:
            raise SeamgateError("the gateway has stopped because of a fault: see the log")

    def _on_fault(self) -> None:
        """It can't go on: stop, and let whoever looks after us start it again."""
        self._fault = True
        self._stopping.set()

    def _on_stop(self, number: signal.Signals) -> None:
        if self._stopping.is_set():
            log.warning("stopping now", signal=number.name)
            self._forced.set()
            return
        log.info("stopping", signal=number.name, grace_s=self._grace_s)
        self._stopping.set()

    async def _stop(self) -> None:
        """Stop with grace, or without if a second signal comes."""
        stop = self._gateway.stop if self._successor is None else self._gateway.retire
        graceful = spawn(stop(grace_s=self._grace_s), name="graceful stop")
        forced = spawn(self._forced.wait(), name="forced stop")
        await asyncio.wait((graceful, forced), return_when=asyncio.FIRST_COMPLETED)
        forced.cancel()
        if not graceful.done():
            graceful.cancel()
            await asyncio.wait((graceful,))
            await self._gateway.stop(grace_s=0)
        else:
            graceful.result()

    def _on_succeed(self) -> None:
        if self._started and not self._stopping.is_set() and not self._succeeding:
            self._succeeding = True
            spawn(self._succeed(), name="succession")

    async def _succeed(self) -> None:
        """Have the same command take over; what can't start changes nothing, and is told."""
        try:
            successor = Successor(self._gateway.listeners.descriptors())
        except OSError as error:
            log.error("no successor can be started: this process goes on", problem=error.strerror)
            self._succeeding = False
            return
        log.info("a successor loads", pid=successor.process.pid)
        ready = await successor.ready()
        if not ready or self._stopping.is_set():
            successor.give_up()
            log.error("the successor can't start: this process goes on, see the log", pid=successor.process.pid)
            self._succeeding = False
            return
        log.info("a successor takes over", pid=successor.process.pid, grace_s=self._grace_s)
        self._successor = successor
        self._stopping.set()

    def _let_go(self) -> None:
        """All is closed: it is the successor's turn, if there is one."""
        successor = self._successor
        if successor is None:
            return
        notify(f"MAINPID={successor.process.pid}")
        if successor.alive:
            successor.go()
        else:
            log.error("the successor is gone", pid=successor.process.pid)
            self._fault = True

    def _on_reload(self) -> None:
        if self._started:  # else, what is being started was read a moment ago
            spawn(self._reload(), name="reload")

    async def _reload(self) -> None:
        """Take a new configuration over, or keep the old one and say so loudly."""
        notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            report = await self._gateway.reload_everywhere()
        except SeamgateError:
            notify("READY=1", "STATUS=the last reload was refused: see the log")
            return
        notify("READY=1", f"STATUS=generation {report.generation}")


def notify(*lines: str) -> None:
    """Tell systemd, if it asked to be told (sd_notify(3)); a failure to do so stops nothing."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return
    address = f"\0{path[1:]}" if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.connect(address)
            channel.send("\n".join(lines).encode())
    except OSError as error:
        log.warning("systemd could not be told", problem=error.strerror)
