"""Upstreams with their own CA, and upstreams that want a client certificate: each origin its own, never another's."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from seamgate.config import parse_config
from support.lab import Lab
from support.parent_proxy import ParentProxy
from support.upstream import HttpUpstream, Talk


class Company(HttpUpstream):
    """A server of a company with a CA of its own, which lets in whom that CA has signed.

    Attributes:
        ca: the company's.
        seen: the common names of the clients that came, "" for none.
    """

    def __init__(self, name: str, *, asks: bool = True) -> None:
        super().__init__(self._answer, name)
        self.ca = trustme.CA()
        self.seen: list[str] = []
        self._asks = asks

    async def start(self) -> None:
        self.tls = False
        await super().start()
        assert self._server is not None
        self._server.close()
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.ca.issue_cert(*self.names).configure_cert(context)
        if self._asks:
            context.verify_mode = ssl.CERT_REQUIRED
            self.ca.configure_trust(context)
        self.tls = True
        loop = self._server.get_loop()
        self._server = await loop.create_server(self._accept, self.address, self.port, ssl=context)

    async def _answer(self, talk: Talk) -> None:
        assert talk.line.transport is not None
        shown: Any = talk.line.transport.get_extra_info("peercert") or {}
        names = [value for part in shown.get("subject", ()) for key, value in part if key == "commonName"]
        self.seen.append(names[0] if names else "")
        await talk.body()
        await talk.respond(200, b"welcome")

    def files(self, folder: Path, *, client: str = "") -> dict[str, Any]:
        """Write CA and client certificate; return the entry of `upstream_tls.origins`."""
        name = self.names[0]
        self.ca.cert_pem.write_to_path(folder / f"{name}.ca.pem")
        entry: dict[str, Any] = {"hosts": [name], "ca": str(folder / f"{name}.ca.pem"), "roots": "only"}
        if client:
            own = self.ca.issue_cert(f"{client}@x.test", common_name=client)
            own.private_key_and_cert_chain_pem.write_to_path(folder / f"{name}.client.pem")
            entry["client_certificate"] = {"certificate": str(folder / f"{name}.client.pem")}
        return entry


@pytest.mark.parametrize("parent", [False, True], ids=["direct", "by-proxy"])
async def test_each_origin_gets_its_own_certificate(parent: bool, tmp_path: Path) -> None:
    """Two companies, two CAs, two identities of the gateway; also from end to end through a company's proxy."""
    one, two = Company("one.test"), Company("two.test")
    async with ParentProxy() as proxy:
        origins = [one.files(tmp_path, client="gateway-1"), two.files(tmp_path, client="gateway-2")]
        settings: dict[str, Any] = {"upstream_tls": {"origins": origins}}
        if parent:
            settings["upstream_proxy"] = {"url": f"http://127.0.0.1:{proxy.port}", "resolve": "gateway"}
        async with Lab(one, two, settings=settings, credential=False) as lab:
            for number in (0, 1, 0, 1):
                client = await lab.tunnel(lab.authority(number))
                assert (await client.ask("GET", "/")).status == 200
            await lab.audited(*["GET / allow allowed 200 complete"] * 4)
            assert (set(one.seen), set(two.seen)) == ({"gateway-1"}, {"gateway-2"})
            assert len(proxy.asked) == (2 if parent else 0)


async def test_without_one_it_is_refused_and_a_reload_brings_it(tmp_path: Path) -> None:
    """Nothing is served; the certificate that a reload names is used from the next request on."""
    company = Company("one.test")
    async with Lab(company, settings={"upstream_tls": {"origins": [company.files(tmp_path)]}}, credential=False) as lab:
        client = await lab.tunnel()
        assert (await client.ask("GET", "/1")).status == 502
        assert company.seen == []
        given = lab.settings()
        given["upstream_tls"] = {"origins": [company.files(tmp_path, client="gateway")]}
        lab.gateway.reload(parse_config(json.dumps(given), "seamgate.yaml", base=lab.folder))
        assert (await client.ask("GET", "/2")).status == 200
        assert company.seen == ["gateway"]
        told = await lab.told()
        assert told[1] == "GET /2 allow allowed 200 complete"
        company.failures.clear()


async def test_the_ca_of_one_origin_is_not_trusted_for_another(tmp_path: Path) -> None:
    """A company's CA may not vouch for others: a certificate that it signed for another host is refused."""
    one, two = Company("one.test", asks=False), Company("two.test", asks=False)
    two.ca = one.ca
    other = Company("two.test", asks=False)
    origins = [one.files(tmp_path), other.files(tmp_path)]
    async with Lab(one, two, settings={"upstream_tls": {"origins": origins}}, credential=False) as lab:
        assert (await (await lab.tunnel(lab.authority(0))).ask("GET", "/")).status == 200
        answer = await (await lab.tunnel(lab.authority(1))).ask("GET", "/")
        assert (answer.status, answer.reason) == (502, "upstream_tls_failed")
        assert two.seen == []
        await lab.audited("GET / allow allowed 200 complete", "GET / allow upstream_tls_failed 502 failed")
