"""A griffe extension for the reference pages: doctests in docstrings become code blocks."""

import re

import griffe

DOCTEST = re.compile(r"(?:^ *>>> .*\n?(?:^ *\S.*\n?)*)+", re.M)


def fence(match: re.Match[str]) -> str:
    indent = " " * (len(match[0]) - len(match[0].lstrip(" ")))
    return f"{indent}```pycon\n{match[0].rstrip()}\n{indent}```\n"


class Doctests(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring and "```" not in obj.docstring.value:
            obj.docstring.value = DOCTEST.sub(fence, obj.docstring.value)
