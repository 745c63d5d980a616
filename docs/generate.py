"""Writes the pages that repeat what the code says: docs/cli.md, docs/configuration.md, docs/reasons.md.

    python docs/generate.py            write them
    python docs/generate.py --check    exit code 1 if one is not what the code says

A test holds the committed pages to it.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import click
import msgspec

from seamgate.cli import main
from seamgate.config import ConfigFile
from seamgate.denial import denial_advice
from seamgate.errors import Reason

FOLDER = Path(__file__).resolve().parent
_NOTE = "<!-- Written by docs/generate.py from the code: change it there. -->\n"
_CLI_INTRODUCTION = """\
Exit codes: 0 fine; 1 the answer is no (denied, a test failed, a chain is broken); 2 usage or configuration;
3 a prerequisite is missing. `seamgate run` exits with the program's own code. Colour is for terminals; `NO_COLOR` turns
it off.
"""
_CONFIGURATION_INTRODUCTION = """\
How a gateway runs. What guests may do stands in the policy files, see [policy.md](policy.md). The file is read
strictly: an unknown key, a wrong type or a reference to nothing is an error with file, line and column. It holds no
secret, only where secrets come from. `seamgate serve --check` says whether it can be used. SIGHUP and
`seamgate reload` take over `policies`, `credentials`, `guests`, `plugins`, `permit_addresses`, `dns`, `upstream_tls`,
`upstream_proxy`, `http2` and `reload`;
the rest waits for the next start, and both say so.

Names of files start from the file's own folder, or from a home (`~`). They are read as one absolute place, when the
file is read; a `..` is the folder above that which a link before it leads to. Other links are followed at each use, so
that what is rotated behind one is found.
"""
_REASONS_INTRODUCTION = """\
Every refusal carries one of these codes: in the body of the denial, in `Proxy-Status` and `X-Seamgate-Reason`, in the
reason phrase of HTTP/1.1 (which pip, npm and clients of a refused CONNECT print), in the
audit log. They are stable: a code never changes its meaning. `status` is what an HTTP guest gets.
"""
_ENTRY = re.compile(r"    ([a-z][a-z0-9_]*(?:, [a-z][a-z0-9_]*)*): (.*)")


def pages() -> dict[str, str]:
    """Return the text of each page by file name."""
    return {"cli.md": cli_page(), "configuration.md": configuration_page(), "reasons.md": reasons_page()}


# -- the command line ------------------------------------------------------------------------------------------------


def cli_page() -> str:
    """Return the page of all commands."""
    parts = [
        "# The command line",
        _NOTE,
        _CLI_INTRODUCTION,
    ]
    for path, command in _commands(main, ("seamgate",)):
        parts.append("\n".join(_command_lines(path, command)))
    return "\n".join(parts)


def _commands(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=" ".join(path))
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None:
                yield from _commands(below, (*path, name))


def _command_lines(path: tuple[str, ...], command: click.Command) -> Iterator[str]:
    yield f"{'#' * min(len(path) + 1, 3)} {' '.join(path)}\n"
    context = click.Context(command, info_name=" ".join(path))
    yield f"    {' '.join(path)} {' '.join(command.collect_usage_pieces(context))}\n"
    yield f"{_help_text(command.help or '')}\n"
    records = [parameter.get_help_record(context) for parameter in command.params]
    shown = [record for record in records if record is not None]
    if shown:
        yield from (f"- `{option}`{': ' if text else ''}{_sentence(text)}" for option, text in shown)
        yield ""


def _help_text(text: str) -> str:
    """Return a help text as Markdown: what click keeps as it is (behind a backspace) becomes a block."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        lines = [line.strip() for line in paragraph.splitlines()]
        verbatim = lines[0] == "\b"
        paragraphs.append("\n".join(f"    {line}" for line in lines[1:]) if verbatim else " ".join(lines))
    return "\n\n".join(paragraphs)


def _sentence(text: str) -> str:
    return " ".join(text.split())


# -- the configuration -----------------------------------------------------------------------------------------------


def configuration_page() -> str:
    """Return the page of all keys of seamgate.yaml."""
    parts = [
        "# seamgate.yaml",
        _NOTE,
        _CONFIGURATION_INTRODUCTION,
        "```yaml",
        _EXAMPLE.strip(),
        "```\n",
    ]
    for path, struct in _sections(ConfigFile, ""):
        parts.append("\n".join(_section_lines(path, struct)))
    return "\n".join(parts)


_EXAMPLE = """
entries:
  proxy: {listen: 127.0.0.1:8080}
  base_url:
    listen: 127.0.0.1:8081
    routes: {anthropic: https://api.anthropic.com}
policies: [org.yaml, research.yaml]
guests:
  research-1:
    token: {env: RESEARCH_1_TOKEN}
    labels: {team: research}
credentials:
  anthropic:
    source: {env: ANTHROPIC_API_KEY}
    inject: {header: x-api-key}
    hosts: [api.anthropic.com]
plugins: [builtin]
audit: {path: /var/lib/seamgate/audit.jsonl}
"""


def _sections(struct: type[msgspec.Struct], path: str) -> Iterator[tuple[str, type[msgspec.Struct]]]:
    yield path, struct
    hints = get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        for inner, suffix in _structs_in(hints[field.name]):
            yield from _sections(inner, f"{path}.{field.encode_name}{suffix}".lstrip("."))


def _structs_in(hint: Any, suffix: str = "") -> Iterator[tuple[type[msgspec.Struct], str]]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint, suffix
        return
    origin = get_origin(hint)
    if origin is Annotated:
        yield from _structs_in(get_args(hint)[0], suffix)
    elif origin in (Union, types.UnionType):
        for each in get_args(hint):
            yield from _structs_in(each, suffix)
    elif origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        yield from _structs_in(get_args(hint)[1], f"{suffix}.NAME")
    elif origin in (tuple, list):
        yield from _structs_in(get_args(hint)[0], f"{suffix}[]")


def _section_lines(path: str, struct: type[msgspec.Struct]) -> Iterator[str]:
    summary, meanings = _docstring(struct)
    if path:
        yield f"## {path}\n"
        yield f"{summary}\n"
    yield "| key | type | default | |"
    yield "|---|---|---|---|"
    hints = get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        meaning = meanings.get(field.name) or _inner_summary(hints[field.name])
        yield f"| `{field.encode_name}` | {_type_text(hints[field.name])} | {_default(field)} | {_cell(meaning)} |"
    yield ""


def _docstring(struct: type[msgspec.Struct]) -> tuple[str, dict[str, str]]:
    """Return a struct's summary and what its docstring says about each attribute."""
    text = struct.__doc__ or ""
    head, _, attributes = text.partition("Attributes:\n")
    meanings: dict[str, str] = {}
    names: list[str] = []
    for line in attributes.splitlines():
        entry = _ENTRY.match(line.removeprefix("    "))
        if entry is not None:
            names = entry[1].split(", ")
            meanings.update(dict.fromkeys(names, entry[2]))
        elif line.strip():
            for name in names:
                meanings[name] += f" {line.strip()}"
    return " ".join(head.split()), meanings


def _inner_summary(hint: Any) -> str:
    for struct, _ in _structs_in(hint):
        return _docstring(struct)[0]
    return ""


def _type_text(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bounds = [f"{sign} {value}" for sign, value in _bounds(arguments[1:])]
        return f"{_type_text(arguments[0])}{' ' if bounds else ''}{', '.join(bounds)}"
    if origin is Literal:
        return ", ".join(f"`{each}`" for each in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(_type_text(each) for each in arguments if each is not type(None))
    if origin in (tuple, list, frozenset):
        return f"list of {_type_text(arguments[0])}"
    if origin is not None and issubclass(origin, Mapping):
        return f"map of {_type_text(arguments[1])}"
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return "section"
    return {str: "text", int: "number", float: "number", bool: "true, false", Any: "any"}.get(hint, str(hint))


def _bounds(metas: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    for meta in metas:
        for name, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<")):
            value = getattr(meta, name, None)
            if value is not None:
                yield sign, value


def _default(field: Any) -> str:
    if field.required:
        return "**required**"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if isinstance(value, msgspec.Struct) or value in ((), {}, None, "", frozenset()):
        return ""
    return f"`{msgspec.json.encode(msgspec.to_builtins(value)).decode()}`".replace('"', "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


# -- the reasons -----------------------------------------------------------------------------------------------------


def reasons_page() -> str:
    """Return the page of all reason codes."""
    lines = [
        "# Reason codes",
        _NOTE,
        _REASONS_INTRODUCTION,
        "| code | status | who can mend it | meaning |",
        "|---|---|---|---|",
    ]
    lines += [f"| `{each.value}` | {each.status} | {each.blame.value} | {each.text} |" for each in Reason]
    advised: dict[str, list[str]] = {}
    for each in Reason:
        if each is not Reason.ALLOWED:
            advised.setdefault(denial_advice(each), []).append(f"`{each.value}`")
    lines += ["", "What a guest is told besides:\n"]
    lines += [f"- {', '.join(codes)}: {advice}" for advice, codes in advised.items()]
    return "\n".join([*lines, ""])


def run(arguments: list[str]) -> int:
    """Write the pages, or check them."""
    stale = []
    for name, text in pages().items():
        path = FOLDER / name
        if arguments == ["--check"]:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                stale.append(name)
        else:
            path.write_text(text, encoding="utf-8")
    if stale:
        sys.stderr.write(f"{', '.join(stale)}: not what the code says; run `python docs/generate.py`\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
