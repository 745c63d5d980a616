"""`seamgate doctor --clients`: proves, client by client, that it uses the gateway and trusts its CA.

Called by the doctor. Each client that is installed sends a real request through a throw-away gateway with the
environment that `seamgate run` sets, and once more with a CA that did not sign: who is served then as well checks
nothing. Clients run in parallel, each for a bounded time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterable
from pathlib import Path

import msgspec

from seamgate.ca.leaf import CertificateAuthority
from seamgate.ca.store import CaFiles, init_ca, load_ca
from seamgate.cli.client_probes import NOT_INSTALLED, PROBES, Place, Probe, python_program
from seamgate.cli.client_stage import ClientStage, present_environment

HOST = "doctor.seamgate.test"
LIMIT_S = 25.0
"""For one run of one client."""
AT_ONCE = 4
_SAID = 160
_TROUBLE = re.compile(r"certificate|error|fail|refused|denied|could not|unable", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(?:\.\d+)+")


class ClientProof(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about one client.

    Attributes:
        name: of the client.
        installed: whether it is here; if not, the rest says nothing.
        version: "" if it does not say.
        trusted: whether it accepted the gateway's certificate.
        proxied: whether it came to the gateway by itself, and showed its login.
        verifies: whether it refused a certificate of another CA.
        known: whether what does not work is known not to.
        variables: what makes it trust the CA.
        message, advice: for people.
    """

    name: str
    installed: bool = True
    version: str = ""
    trusted: bool = False
    proxied: bool = False
    verifies: bool = False
    known: bool = False
    variables: tuple[str, ...] = ()
    message: str = ""
    advice: str = ""

    @property
    def fine(self) -> bool:
        """Whether nothing is to be done."""
        return self.trusted and self.proxied and self.verifies


class _Run(msgspec.Struct, frozen=True):
    """How one run of a client ended. `code` is None if its time was up."""

    code: int | None
    out: str

    @property
    def said(self) -> str:
        """The line that names a problem, else the last one; printable and short."""
        lines = [line.strip() for line in self.out.splitlines() if line.strip()]
        telling = [line for line in lines if _TROUBLE.search(line)]
        text = (telling or lines[-1:] or ["it said nothing"])[0]
        return "".join(char for char in text if char.isprintable())[:_SAID]


async def prove_clients(ca: Path, probes: Iterable[Probe] = PROBES) -> list[ClientProof]:
    """Try all clients with the CA in this folder, or with one of this hour if there is none; in the table's order.

    Raises:
        SeamgateError: the CA can't be used, or nothing can be started on loopback.
    """
    probes = tuple(probes)
    here = tuple(probe for probe in probes if not probe.program or shutil.which(probe.program))
    if not here:  # a gateway without any guest would be refused
        return [ClientProof(name=probe.name, installed=False) for probe in probes]
    with tempfile.TemporaryDirectory(prefix="seamgate-doctor-") as name:
        folder = Path(name)
        material = load_ca(ca) if CaFiles(ca).certificate.exists() else init_ca(folder / "ca")
        decoy = init_ca(folder / "decoy").files
        host = permitted_host(CertificateAuthority(material))
        names = tuple(probe.name for probe in here)
        stage = ClientStage(folder, material.files.directory, host, names)
        async with stage:
            turns = asyncio.Semaphore(AT_ONCE)
            examinations = [_Examination(stage, folder, decoy, turns, probe) for probe in here]
            proofs = await asyncio.gather(*(each.result() for each in examinations))
    found = {proof.name: proof for proof in proofs}
    return [found.get(probe.name, ClientProof(name=probe.name, installed=False)) for probe in probes]


def permitted_host(authority: CertificateAuthority) -> str:
    """Return a name that the CA may sign for: below one of its own if it is limited."""
    return f"doctor.{authority.permitted[0]}" if authority.permitted else HOST


class _Examination:
    """Examines one client."""

    def __init__(
        self, stage: ClientStage, folder: Path, decoy: CaFiles, turns: asyncio.Semaphore, probe: Probe
    ) -> None:
        self._stage = stage
        self._folder = folder
        self._decoy = decoy
        self._turns = turns
        self._probe = probe

    async def result(self) -> ClientProof:
        """Run the client as often as needed."""
        probe, stage = self._probe, self._stage
        version = await self._version()
        if version is None:
            return ClientProof(name=probe.name, installed=False)
        run, _ = await asyncio.gather(self._ask("own"), self._ask("decoy", ca=self._decoy))
        if run.code == NOT_INSTALLED:
            return ClientProof(name=probe.name, installed=False)
        proof = ClientProof(name=probe.name, version=version, variables=probe.variables)
        verifies = not stage.reached(self._tag("decoy"))
        if stage.reached(self._tag("own")):
            return self._served(proof, verifies=verifies)
        return await self._not_served(proof, run)

    def _served(self, proof: ClientProof, *, verifies: bool) -> ClientProof:
        replace = msgspec.structs.replace
        if verifies:
            return replace(
                proof, trusted=True, proxied=True, verifies=True, message="trusts the CA, and only what it signed"
            )
        return replace(
            proof,
            trusted=True,
            proxied=True,
            message="is served whichever CA it is told to trust",
            advice="its own settings turn verification off, or ca.pem is in a trust store of its own: look there",
        )

    async def _not_served(self, proof: ClientProof, run: _Run) -> ClientProof:
        """Find out what is missing: trust, the login, or the proxy itself."""
        replace, probe, stage = msgspec.structs.replace, self._probe, self._stage
        reasons = stage.reasons(probe.name)
        # Some finish the handshake before they look at the certificate, and hang up then.
        if reasons and set(reasons) <= {"guest_tls_failed", "allowed"}:
            variables = ", ".join(probe.variables)
            advice = probe.gap or (
                f"{variables} name ca.pem, and something overrides them: look at its own settings" if variables else ""
            )
            message = f"does not trust the CA: {run.said}"
            return replace(proof, proxied=True, known=bool(probe.gap), message=message, advice=advice)
        if run.code is None:
            return replace(proof, message=f"was not done after {LIMIT_S:g} s", advice="try it by hand")
        await self._ask("open", login=False)
        if stage.reached(self._tag("open")):
            return replace(
                proof,
                trusted=True,
                known=bool(probe.gap),
                message="trusts the CA, but shows the proxy no login",
                advice=probe.gap or "give its guests a listener of their own (`entries.proxy.guest`), or use netns",
            )
        if probe.by_hand is not None:
            await self._ask("by-hand", by_hand=True)
        trusted = stage.reached(self._tag("by-hand"))
        beyond = "" if trusted else f": {run.said}"
        return replace(
            proof,
            trusted=trusted,
            known=trusted and bool(probe.gap),
            message=("trusts the CA, but " if trusted else "") + f"does not come to the gateway by itself{beyond}",
            advice=probe.gap or "it ignores the proxy's variables, or its own settings override them; use netns",
        )

    def _tag(self, kind: str) -> str:
        return f"{self._probe.name}-{kind}"

    async def _ask(self, kind: str, *, ca: CaFiles | None = None, login: bool = True, by_hand: bool = False) -> _Run:
        probe, stage, tag = self._probe, self._stage, self._tag(kind)
        folder = self._folder / tag
        folder.mkdir()
        user, _, at = stage.proxy(probe.name, login=login).removeprefix("http://").rpartition("@")
        name, _, password = user.partition(":")
        place = Place(stage.url(tag), stage.host, stage.port, at, name, password, folder)
        environment = stage.environment(probe.name, ca or stage.ca, present_environment(), login=login)
        if probe.environment is not None:
            environment |= probe.environment(place)
        make = probe.by_hand if by_hand and probe.by_hand is not None else probe.command
        stdin = probe.stdin(place) if probe.stdin is not None else ""
        return await self._run(make(place), environment, folder, stdin)

    async def _version(self) -> str | None:
        """Return the version; None if the client can't even say that, so that it is not there."""
        probe = self._probe
        command = [probe.program or python_program(), *probe.version]
        run = await self._run(command, present_environment(), self._folder, "")
        if run.code != 0:
            return None
        found = _NUMBER.search(run.out)
        return found.group() if found else ""

    async def _run(self, command: list[str], environment: dict[str, str], folder: Path, stdin: str) -> _Run:
        # A file, not a pipe: a client may be gone before a pipe is filled.
        (folder / "stdin").write_text(stdin, encoding="utf-8")
        async with self._turns:
            with (folder / "stdin").open("rb") as source:
                child = await asyncio.create_subprocess_exec(
                    *command,
                    env=environment,
                    cwd=folder,
                    stdin=source,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                    start_new_session=True,
                )
            try:
                async with asyncio.timeout(LIMIT_S):
                    out, _ = await child.communicate()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)  # programs like npm have children of their own
                await child.wait()
                return _Run(None, "")
        return _Run(child.returncode, out.decode("utf-8", "replace"))
