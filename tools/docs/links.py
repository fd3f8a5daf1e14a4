"""Rewrites the relative links of a Markdown page for readers who do not see it in the repository.

Owns finding links outside of code blocks and resolving them against the repository. Does not own where they
lead instead. ``setup.py`` runs this file for the page on PyPI, so it imports the standard library only.
"""

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

#: A fenced block, which stays as it is, or a link or image with its text and target.
_PARTS = re.compile(
    r"(?ms)^(?P<indent> *)```.*?^(?P=indent)```$"
    r"|(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<target>[^()\s]+)\)"
)
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|#", re.IGNORECASE)


def rewrite(text: str, page: str, leads_to: Callable[[str, str, bool], str | None]) -> str:
    """Returns the page with other targets for its relative links.

    Args:
        text: The page.
        page: Its path in the repository, with slashes.
        leads_to: Called with the path of a target in the repository, its fragment ("" or "#..."), and whether
            it is an image. Returns the new target; None leaves only the link's text, and nothing of an image.
    """

    def changed(part: re.Match[str]) -> str:
        target = part["target"]
        if target is None or _ELSEWHERE.match(target):
            return part[0]
        path, hash_, fragment = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        new = leads_to(path, hash_ + fragment, bool(part["image"]))
        if new is None:
            return "" if part["image"] else part["text"]
        return f"{part['image']}[{part['text']}]({new})"

    return _PARTS.sub(changed, text)


def for_pypi(root: Path, repository: str | None, version: str) -> str:
    """Returns the README with links to the version's tag in the repository.

    Without the repository's address no link could work, so only their text is left.
    """

    def leads_to(path: str, fragment: str, image: bool) -> str | None:
        if repository is None:
            return None
        return f"{repository.rstrip('/')}/{'raw' if image else 'blob'}/v{version}/{path}{fragment}"

    return rewrite((root / "README.md").read_text(encoding="utf-8"), "README.md", leads_to)
