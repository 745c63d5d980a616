"""`seamgate run`: the guest's environment, its exit code and signals, the summary, and what is refused."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from seamgate.ca.store import init_ca
from support.cli import COMMAND_S, Running, seamgate

_PRINT_ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"
_SHOW_CA = """\
import os, subprocess
print(os.environ["SSL_CERT_FILE"], flush=True)
subprocess.run(["openssl", "x509", "-noout", "-text", "-in", os.environ["SSL_CERT_FILE"]])
"""
_ASK = """\
import sys, urllib.request, urllib.error
for url in sys.argv[1:]:
    try:
        urllib.request.urlopen(url, timeout=40)
    except OSError as error:
        print(error)
"""


def _python(code: str) -> tuple[str, ...]:
    return ("--", sys.executable, "-c", code)


def _config(folder: Path) -> Path:
    """Write a configuration with a credential, a second guest with a token, and a base-URL route."""
    (folder / "p.yaml").write_text("seamgate: 1\nrules:\n  - {id: one, allow: {hosts: [a.example]}, credential: key}\n")
    path = folder / "seamgate.yaml"
    path.write_text(
        "entries:\n"
        "  proxy: {listen: 127.0.0.1:8080}\n"
        "  base_url: {listen: 127.0.0.1:8081, routes: {a: https://a.example}}\n"
        "policies: [p.yaml]\n"
        "guests: {other: {token: {env: OTHER_TOKEN}}}\n"
        "credentials:\n"
        "  key: {source: {env: THE_KEY}, inject: {bearer: true}, hosts: [a.example], placeholder: sk-looks-real-0000}\n"
        "audit: {path: audit.jsonl}\n"
    )
    return path


def test_the_guest_gets_placeholders_and_a_proxy(tmp_path: Path) -> None:
    """No secret of the configuration is in the guest's environment; proxy, CA and base URL are."""
    secrets = {"THE_KEY": "sk-the-real-value-123456", "OTHER_TOKEN": "other-guests-token-1234567890"}
    path = _config(tmp_path)
    ask = ("--isolation", "proxy", *_python(_PRINT_ENVIRONMENT))
    done = seamgate("run", "-c", str(path), *ask, home=tmp_path, env=secrets)
    assert done.returncode == 0, done.stderr
    environment = json.loads(done.stdout)
    assert environment["THE_KEY"] == "sk-looks-real-0000"
    assert "OTHER_TOKEN" not in environment
    assert not [value for value in secrets.values() if value in done.stdout]
    proxy = re.fullmatch(r"http://run:([\w-]{32})@127\.0\.0\.1:\d+", environment["HTTPS_PROXY"])
    assert proxy is not None
    assert re.fullmatch(rf"http://127\.0\.0\.1:\d+/~{proxy[1]}", environment["SEAMGATE_BASE_URL"])
    assert environment["NO_PROXY"] == ""
    assert environment["SSL_CERT_FILE"] == str(tmp_path / ".local/share/seamgate/ca/ca.pem")


@pytest.mark.parametrize("isolation", ["proxy", "netns"])
def test_without_a_configuration_no_secret_is_handed_on(isolation: str, tmp_path: Path) -> None:
    """The key of an allowed host is a placeholder, other secrets are not there; the start says so, without a value."""
    secrets = {"ANTHROPIC_API_KEY": "sk-ant-the-real-value-123456", "ACME_TOKEN": "acme-token-1234567890"}
    env = {**secrets, "OPENAI_API_KEY": "sk-openai-kept-1234567890", "PLAIN": "plain"}
    options = ("--summary", "--isolation", isolation, "--allow", "api.anthropic.com", "--keep-env", "OPENAI_API_KEY")
    done = seamgate("run", *options, *_python(_PRINT_ENVIRONMENT), home=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    environment = json.loads(done.stdout)
    assert environment["ANTHROPIC_API_KEY"] == "sgph-anthropic"
    assert "ACME_TOKEN" not in environment
    assert (environment["OPENAI_API_KEY"], environment["PLAIN"]) == (env["OPENAI_API_KEY"], "plain")
    assert "ANTHROPIC_API_KEY: the program gets a placeholder" in done.stderr
    assert re.search(r"withheld from the program: .*\bACME_TOKEN\b", done.stderr)
    assert not [value for value in secrets.values() if value in done.stdout + done.stderr]


@pytest.mark.parametrize("isolation", ["proxy", "netns"])
def test_an_inherited_folder_of_roots_is_not_trusted(isolation: str, tmp_path: Path) -> None:
    """SSL_CERT_DIR counts besides SSL_CERT_FILE: what the caller trusts, the program does not."""
    roots = tmp_path / "roots"
    certificate = init_ca(tmp_path / "other").files.certificate
    roots.mkdir()
    digest = subprocess.check_output(
        ["openssl", "x509", "-hash", "-noout", "-in", certificate], text=True, timeout=COMMAND_S
    ).strip()
    (roots / f"{digest}.0").write_bytes(certificate.read_bytes())
    verify, env = ("openssl", "verify", str(roots / f"{digest}.0")), {"SSL_CERT_DIR": str(roots)}
    assert (
        subprocess.run(verify, env=os.environ | env, capture_output=True, timeout=COMMAND_S, check=False).returncode
        == 0
    )
    done = seamgate("run", "--isolation", isolation, "--", *verify, home=tmp_path, env=env)
    assert (done.returncode, "self-signed certificate" in done.stderr) == (2, True), done


def test_the_summary_can_be_json(tmp_path: Path) -> None:
    """One line at the end of standard error: counts, denials by frequency, where the journal is."""
    options = ("--no-summary", "--json", "--isolation", "netns", "--audit", "runs/run.jsonl")
    done = seamgate("run", *options, *_python(_ASK), "http://a.example/one", home=tmp_path)
    told = json.loads(done.stderr.splitlines()[-1])
    assert (told["allowed"], told["denied"]) == (0, 1)
    assert [(each["reason"], each["what"], each["count"]) for each in told["denials"]] == [
        ("no_rule_matched", "GET a.example /one", 1)
    ]
    assert told["journal"] == str(tmp_path / "runs/run.jsonl")


def test_keep_env_does_not_widen_a_configuration(tmp_path: Path) -> None:
    """With -c its credentials say what is secret; the option is refused there."""
    done = seamgate("run", "-c", str(_config(tmp_path)), "--keep-env", "PATH", "--", "true", home=tmp_path)
    assert done.returncode == 2
    assert "--keep-env is for runs without -c" in done.stderr


def test_a_run_keeps_a_journal_of_its_own(tmp_path: Path) -> None:
    """Two runs of one configuration at once don't meet: each writes beside the configured journal, and both verify."""
    path = _config(tmp_path)
    secrets = {"THE_KEY": "sk-the-real-value-123456", "OTHER_TOKEN": "other-guests-token-1234567890"}
    # The outer run's guest holds placeholders: the inner one needs the real values, which only a test would hand on.
    values = (f"{name}={value}" for name, value in secrets.items())
    options = ("run", "--isolation", "proxy", "-c", str(path), "--")
    inner = ("env", *values, sys.executable, "-m", "seamgate", *options, "true")
    done = seamgate(*options, *inner, home=tmp_path, env=secrets)
    assert done.returncode == 0, done.stderr
    journals = sorted((tmp_path / "runs").glob("*.jsonl"))
    assert len(journals) == 2
    for journal in journals:
        assert seamgate("audit", "verify", str(journal), home=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("code", "expected"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)]
)
def test_the_exit_code_is_the_programs(code: str, expected: int, tmp_path: Path) -> None:
    """As a shell says it: the code itself, or 128 and the signal."""
    assert seamgate("run", *_python(code), home=tmp_path).returncode == expected


def test_a_program_that_is_not_there_is_127(tmp_path: Path) -> None:
    """And the message names it."""
    done = seamgate("run", "--", "no-such-program", home=tmp_path)
    assert (done.returncode, "no-such-program" in done.stderr) == (127, True)


def test_signals_reach_the_program(tmp_path: Path) -> None:
    """SIGTERM goes on to the program, which may end in its own way."""
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(42))\n"
        "print('ready', file=sys.stderr, flush=True)\n"
        "signal.pause()"
    )
    with Running("run", "--isolation", "netns", *_python(code), home=tmp_path) as program:
        program.wait_for("ready")
        program.process.send_signal(signal.SIGTERM)
        assert program.ended() == 42


def test_options_after_the_program_are_the_programs(tmp_path: Path) -> None:
    """Also without --: the first word that is no option begins the command."""
    done = seamgate("run", sys.executable, "-c", "import sys; print(sys.argv[1:])", "--label", "x", home=tmp_path)
    assert done.stdout == "['--label', 'x']\n"


def test_the_summary_tells_what_was_denied(tmp_path: Path) -> None:
    """Counts, the denials by frequency with their sentence, and how to see more."""
    urls = ("http://a.example/one", "http://a.example/one", "https://b.example/two")
    options = ("--summary", "--isolation", "netns", "--allow", "c.example", "--audit", "runs/run.jsonl")
    done = seamgate("run", *options, *_python(_ASK), *urls, home=tmp_path)
    assert done.returncode == 0
    summary = done.stderr
    assert "seamgate: 3 requests, 0 allowed, 3 denied" in summary
    assert re.search(r"2 x no_rule_matched  GET a.example /one\n +No rule allows GET http://a.example/one", summary)
    assert re.search(r"1 x no_rule_matched  CONNECT b.example", summary)
    assert f"seamgate audit tail {tmp_path / 'runs/run.jsonl'} --denied" in summary


def test_without_a_terminal_two_lines_tell_what_was_denied(tmp_path: Path) -> None:
    """Names that a namespace does not resolve count too, and the command that they name shows the reasons."""
    urls = ("https://b.example/two", "http://a.example/one", "http://a.example/one")
    journal = tmp_path / "runs/run.jsonl"
    options = ("--isolation", "netns", "--allow", "c.example", "--audit", "runs/run.jsonl")
    resolve = "import socket\ntry: socket.gethostbyname('d.example')\nexcept OSError: pass\n"
    done = seamgate("run", *options, *_python(resolve + _ASK), *urls, home=tmp_path)
    denied, where = done.stderr.splitlines()[-2:]
    assert denied.startswith("seamgate: 4 requests denied: 2 x no_rule_matched GET a.example /one, ")
    assert "1 x no_rule_matched CONNECT b.example" in denied
    assert "1 x no_rule_matched RESOLVE d.example" in denied
    assert where == f"seamgate: why: seamgate audit tail {journal} --denied"
    shown = seamgate(*where.removeprefix("seamgate: why: seamgate ").split(), home=tmp_path)
    assert (shown.returncode, shown.stdout.count("no_rule_matched")) == (0, 4), shown
    silent = seamgate("run", "--no-summary", *options[:2], *_python(_ASK), urls[1], home=tmp_path)
    assert silent.stderr == ""


def test_a_run_can_be_silent(tmp_path: Path) -> None:
    """With --no-summary, standard error is the program's alone, so that scripts can use it."""
    done = seamgate("run", "--no-summary", *_python("print('hello')"), home=tmp_path, env={"ACME_TOKEN": "t" * 20})
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")


def test_without_a_terminal_a_run_says_what_is_withheld_and_held_less(tmp_path: Path) -> None:
    """A service's log has it, where nobody looks on."""
    done = seamgate("run", "--allow", "a.example", "--", "true", home=tmp_path, env={"ACME_TOKEN": "t" * 20})
    withheld, isolation = done.stderr.splitlines()
    assert re.search(r"^seamgate: withheld from the program: .*\bACME_TOKEN\b", withheld)
    assert re.search(r"^seamgate: isolation netns: .* Why not kvm: ", isolation)


@pytest.mark.parametrize("options", [("--isolation", "netns"), ("--isolation", "auto")])
def test_the_journal_tells_the_isolation_of_a_run_without_requests(options: tuple[str, ...], tmp_path: Path) -> None:
    """The record of the start names it, and whether `auto` chose it, and why nothing stronger."""
    journal = tmp_path / "runs" / "run.jsonl"
    seamgate("run", *options, "--audit", str(journal), "--", "true", home=tmp_path)
    starts = [json.loads(line)["gateway"]["facts"] for line in journal.read_text().splitlines() if '"start"' in line]
    assert starts[-1]["isolation"] == "netns"
    chosen = starts[-1].get("isolation_chosen", "")
    assert chosen.startswith("auto. Why not kvm: ") if "auto" in options else not chosen


def test_an_isolation_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A stronger isolation is never replaced by a weaker one in silence: exit code 3, and what to do instead."""
    done = seamgate("run", "--isolation", "kvm", "--", "true", home=tmp_path)
    assert done.returncode == 3
    assert "--isolation kvm" in done.stderr
    assert "--isolation netns" in done.stderr


def test_auto_says_what_it_took(tmp_path: Path) -> None:
    """The strongest that there is here; what the program was told stays where it was."""
    done = seamgate("run", "--summary", "--", "true", home=tmp_path)
    assert "seamgate: isolation netns: " in done.stderr


def test_allow_does_not_widen_a_configuration(tmp_path: Path) -> None:
    """With -c the security team's policies decide; --allow is refused there."""
    done = seamgate("run", "-c", str(_config(tmp_path)), "--allow", "x.example", "--", "true", home=tmp_path)
    assert done.returncode == 2
    assert "--allow is for runs without -c" in done.stderr


def test_labels_reach_the_policy(tmp_path: Path) -> None:
    """A rule for a label allows the guest that has it; here up to the name, which does not exist."""
    path = _config(tmp_path)
    (tmp_path / "p.yaml").write_text(
        "seamgate: 1\nrules:\n  - {id: one, allow: {hosts: [a.invalid], schemes: [http]}, guests: {team: red}}\n"
    )
    env = {"THE_KEY": "sk-the-real-value-123456", "OTHER_TOKEN": "other-guests-token-1234567890"}
    for label, expected in (("team=red", "502"), ("team=blue", "403")):
        ask = (*_python(_ASK), "http://a.invalid/")
        done = seamgate("run", "-c", str(path), "--label", label, *ask, home=tmp_path, env=env)
        assert expected in done.stdout, done.stdout + done.stderr


def test_a_ca_of_its_own_is_limited_and_gone_afterwards(tmp_path: Path) -> None:
    """It may sign for what the run's policy could allow and nothing else; the next run has another one."""
    ask = _python(_SHOW_CA)
    seen = []
    for options, limits in (
        (("--allow", "api.example", "--allow", "*.b.example"), ["DNS:api.example", "DNS:b.example"]),
        (("--allow", "**"), []),
        ((), ["DNS:invalid"]),
    ):
        done = seamgate("run", "--own-ca", *options, "--isolation", "proxy", *ask, home=tmp_path)
        assert done.returncode == 0, done.stderr
        path, text = done.stdout.split("\n", 1)
        assert re.findall(r"DNS:\S+", text) == limits
        assert ("Excluded:" in text) == bool(limits)
        assert not Path(path).exists()
        seen.append(re.search(r"Serial Number:\s+(\S+)", text))
    assert len({found[1] for found in seen if found is not None}) == 3
    assert not (tmp_path / ".local" / "share" / "seamgate" / "ca").exists()


def test_a_limited_ca_serves_what_is_allowed(tmp_path: Path) -> None:
    """By configuration, by labels; curl gets the denial of an allowed host's path, signed by the limited CA."""
    path = _config(tmp_path)
    path.write_text(path.read_text() + "ca: {each_run: true}\n")
    ask = (
        "--",
        "curl",
        "-sS",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code} %{ssl_verify_result}",
        "https://a.example/%2e%2e/x",
    )
    done = seamgate(
        "run",
        "-c",
        str(path),
        "--isolation",
        "proxy",
        *ask,
        home=tmp_path,
        env={"THE_KEY": "k" * 20, "OTHER_TOKEN": "t" * 20},
    )
    assert done.stdout == "400 0", done.stderr
