"""How a method looks: the same colour in every figure; variants of it differ by line, marker and hatching.

The colours are those of Okabe and Ito, which stay apart under the common forms of colour blindness; line styles,
markers and hatching say the same again for print in grey.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

COLOURS = {
    "ce": "#4d4d4d",
    "logadj": "#0072b2",
    "elm": "#d55e00",
    "dro-lt": "#009e73",
    "ldam-drw": "#cc79a7",
    "cb-focal": "#e69f00",
    "tau-norm": "#56b4e9",
    "dro-lt-multistage": "#00573f",
    "crt": "#7a4b94",
    "vs": "#8c6d1f",
}
_OTHERS = ("#a6761d", "#7570b3", "#1b9e77", "#e7298a", "#666666", "#66a61e")
_LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_HATCHES = ("", "///", "...", "xxx", "\\\\\\")
GROUP_COLOURS = {"head": "#0072b2", "torso": "#009e73", "tail": "#d55e00"}
GROUP_MARKERS = {"head": "o", "torso": "s", "tail": "^"}


@dataclass(frozen=True)
class Style:
    color: str
    line: Any = "-"
    marker: str = "o"
    hatch: str = ""


def styles(methods: Mapping[str, str]) -> dict[str, Style]:
    """One style a label, given the method behind each label; the first label of a method gets its plain look.

    >>> looks = styles({"ELM": "elm", "ELM (memory = 8)": "elm", "CE": "ce"})
    >>> looks["ELM"].color == looks["ELM (memory = 8)"].color, looks["ELM"].line == looks["ELM (memory = 8)"].line
    (True, False)
    """
    unknown = sorted({m for m in methods.values() if m not in COLOURS})
    colours = {**COLOURS, **{m: _OTHERS[i % len(_OTHERS)] for i, m in enumerate(unknown)}}
    order = [*COLOURS, *unknown]
    seen: dict[str, int] = {}
    looks = {}
    for label, method in methods.items():
        variant = seen.get(method, 0)
        seen[method] = variant + 1
        base = Style(colours[method], marker=_MARKERS[(order.index(method) + variant) % len(_MARKERS)])
        # methods beyond the fixed palette share colours in turn, so their lines must differ from the start
        turn = unknown.index(method) // len(_OTHERS) if method in unknown else 0
        looks[label] = replace(
            base, line=_LINES[(variant + turn) % len(_LINES)], hatch=_HATCHES[(variant + turn) % len(_HATCHES)]
        )
    return looks


def of(labels: Iterable[str], given: Mapping[str, Style] | None) -> dict[str, Style]:
    """The given styles, or ones made from the labels themselves where a label is (nearly) a method's name."""
    labels = list(labels)
    made = styles({label: label.lower().replace(" + ", "-").replace(" ", "-") for label in labels})
    return {label: (given or {}).get(label) or made[label] for label in labels}
