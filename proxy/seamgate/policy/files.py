"""Reads policy files: the one part of `seamgate.policy` that touches a disk.

Called by the policy plugin and the CLI.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from seamgate.collector import without_collector
from seamgate.document import read_text
from seamgate.errors import ConfigError
from seamgate.policy.loader import find_problems, parse_policy
from seamgate.policy.model import Policy

if TYPE_CHECKING:
    from seamgate.policy.suffixes import PublicSuffixes

_YAML = frozenset({".yaml", ".yml"})
_SAYS_POLICY = re.compile(r"^seamgate[ \t]*:", re.MULTILINE)


def read_policy(path: Path | str) -> Policy:
    """Read and load one policy file.

    Raises:
        ConfigError: it can't be read, or means nothing; with line and column.
    """
    return parse_policy(read_text(path), str(path))


def check_policy(path: Path | str) -> tuple[Policy | None, list[ConfigError]]:
    """Read and load one policy file, or return all that can be found wrong with it, in the order of the file."""
    try:
        text = read_text(path)
    except ConfigError as error:
        return None, [error]
    try:
        return parse_policy(text, str(path)), []
    except ConfigError as first:
        return None, find_problems(text, str(path)) or [first]


def read_policies(paths: Iterable[Path | str], texts: Mapping[str, str] | None = None) -> tuple[Policy, ...]:
    """Read and load policy files, in the order given, which means nothing.

    Args:
        paths: the files.
        texts: what stands in some of them, by name; those are not read.

    Raises:
        ConfigError: as `read_policy`, for the first that fails.
    """
    with without_collector():
        return tuple(
            parse_policy(texts[str(path)], str(path)) if texts and str(path) in texts else read_policy(path)
            for path in paths
        )


def policies_in(folder: Path) -> list[Path]:
    """Return the policy files in a folder, by name: the YAML files that say `seamgate:`. Others are somebody else's.

    Raises:
        ConfigError: one can't be read.
    """
    names = sorted(path for path in folder.iterdir() if path.suffix in _YAML and path.is_file())
    return [path for path in names if _SAYS_POLICY.search(read_text(path))]


@cache
def public_suffixes() -> PublicSuffixes:
    """Read the Public Suffix List that came with its package. Takes a fifth of a second, so only once it is needed."""
    from seamgate.policy.suffixes import PublicSuffixes

    found = resources.files("publicsuffixlist").joinpath("public_suffix_list.dat")
    return PublicSuffixes(found.read_text(encoding="utf-8"))
