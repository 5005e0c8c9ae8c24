"""Per-class functions of the counts, and logit margins made of two of them.

A per-class function is called with ``ClassCounts`` and returns one float64 value a class. Every margin of the paper is
separable, ``Δ[y, y'] = target[y] + other[y']``, so no C×C matrix is ever stored.

All of them are frozen dataclasses: they compare by value, print as the code that makes them, and turn into plain data
and back with ``to_data`` and ``from_data`` (that is how they get into a run's config). ``parse`` reads the short form
of the command line.

A count of 0 is computed as 1 in logarithms, effective numbers, LDAM and negative powers.

>>> from longtail import ClassCounts
>>> counts = ClassCounts([64, 16, 0])
>>> Power(0.5, of="count")(counts)
tensor([8., 4., 0.], dtype=torch.float64)
>>> from_data(Power(0.5, scale=10.0).to_data())
Power(0.5, scale=10.0)
>>> parse("10*prior^0.5")
Power(0.5, scale=10.0)
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from .counts import ClassCounts
from .errors import InputError, one_of, real


class PerClass:
    """A function from ``ClassCounts`` to one float64 value a class."""

    def __post_init__(self) -> None:
        """Finite numbers of any kind (NumPy's too) become floats: printing and plain data are the same for all."""
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            if field.type in (float, "float"):
                number = real(f"{type(self).__name__}'s {field.name}", getattr(self, field.name))
                object.__setattr__(self, field.name, number)

    def __call__(self, counts: ClassCounts) -> Tensor:
        raise NotImplementedError

    def to_data(self) -> dict[str, Any]:
        """Plain data that ``from_data`` turns back into an equal object."""
        return {"kind": type(self).__name__, **dataclasses.asdict(self)}  # type: ignore[call-overload]

    def __repr__(self) -> str:
        parts = []
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.default is dataclasses.MISSING:
                parts.append(repr(value))
            elif value != field.default:
                parts.append(f"{field.name}={value!r}")
        return f"{type(self).__name__}({', '.join(parts)})"


@dataclass(frozen=True, repr=False)
class Constant(PerClass):
    """The same value for every class."""

    value: float

    def __call__(self, counts: ClassCounts) -> Tensor:
        return torch.full((counts.num_classes,), float(self.value), dtype=torch.float64)


@dataclass(frozen=True, repr=False)
class Power(PerClass):
    """``scale · P(y)^exponent``, or of the count: ELM's α, the paper's form of LDAM's and of the equalised margin."""

    exponent: float
    scale: float = 1.0
    of: Literal["prior", "count"] = "prior"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("Power of", self.of, ("prior", "count"))

    def __call__(self, counts: ClassCounts) -> Tensor:
        if self.exponent < 0:
            base = counts.safe_prior if self.of == "prior" else counts.safe_n
        else:
            base = counts.prior if self.of == "prior" else counts.n.double()
        return self.scale * base**self.exponent


@dataclass(frozen=True, repr=False)
class LogPrior(PerClass):
    """``τ · log P(y)``."""

    tau: float = 1.0

    def __call__(self, counts: ClassCounts) -> Tensor:
        return self.tau * counts.safe_prior.log()


@dataclass(frozen=True, repr=False)
class EffectiveNumber(PerClass):
    """``(1 − β)/(1 − β^n)``, scaled so that the non-empty classes sum to C (Cui et al. 2019)."""

    beta: float = 0.9999

    def __post_init__(self) -> None:
        super().__post_init__()
        real("EffectiveNumber's beta", self.beta, at_least=0, below=1)

    def __call__(self, counts: ClassCounts) -> Tensor:
        # -expm1(n log β) is 1 − β^n without cancellation for β near 1
        log_beta = math.log(self.beta) if self.beta > 0 else -math.inf
        weights = (1 - self.beta) / -torch.expm1(counts.safe_n * log_beta)
        present = counts.n > 0
        return weights * counts.num_classes / weights[present].sum()


@dataclass(frozen=True, repr=False)
class Ldam(PerClass):
    """LDAM's normalised margin ``max_margin · n^(−1/4) / max n^(−1/4)`` (Cao et al. 2019), the maximum over non-empty
    classes; with ``scale`` s the value is s·m, as it stands in the loss on logits s·cosθ."""

    max_margin: float = 0.5
    scale: float = 1.0

    def __call__(self, counts: ClassCounts) -> Tensor:
        root = counts.safe_n**-0.25
        return self.scale * self.max_margin * root / root[counts.n > 0].max()


@dataclass(frozen=True, repr=False)
class Relative(PerClass):
    """``(n / max n)^exponent``: the factor on the logits in the vector-scaling loss (Kini et al. 2021)."""

    exponent: float

    def __call__(self, counts: ClassCounts) -> Tensor:
        return (counts.safe_n / counts.n.max()) ** self.exponent


@dataclass(frozen=True)
class Margin:
    """A separable logit margin ``Δ[y, y'] = target[y] + other[y']``; either part may be absent.

    >>> Margin.log_ratio()
    Margin(target=LogPrior(tau=-1.0), other=LogPrior())
    """

    target: PerClass | None = None
    other: PerClass | None = None

    def __post_init__(self) -> None:
        for name in ("target", "other"):
            part = getattr(self, name)
            if part is not None and not isinstance(part, PerClass):
                raise InputError(
                    f"Margin's {name} must be a per-class function such as LogPrior() or None, got {part!r}"
                )

    @classmethod
    def log_ratio(cls, tau: float = 1.0) -> Margin:
        """``τ · log P(y')/P(y)``: logit adjustment, balanced softmax, and ELM's own choice."""
        other = LogPrior(tau)
        return cls(target=LogPrior(-other.tau), other=other)

    def to_data(self) -> dict[str, Any]:
        parts = {"target": self.target, "other": self.other}
        return {"kind": "Margin", **{k: None if v is None else v.to_data() for k, v in parts.items()}}

    def __repr__(self) -> str:
        parts = [f"{k}={v!r}" for k, v in (("target", self.target), ("other", self.other)) if v is not None]
        return f"Margin({', '.join(parts)})"


KINDS: dict[str, type] = {c.__name__: c for c in (Constant, Power, LogPrior, EffectiveNumber, Ldam, Relative, Margin)}


def from_data(data: Any) -> Any:
    """The inverse of ``to_data``; a plain number becomes ``Constant``."""
    if isinstance(data, (int, float)) and not isinstance(data, bool):
        return Constant(float(data))
    if not isinstance(data, dict) or "kind" not in data:
        raise InputError(f"a margin's plain data is a mapping with a 'kind', got {data!r}")
    kind = KINDS[one_of("margin kind", str(data["kind"]), KINDS)]
    fields = {k: v for k, v in data.items() if k != "kind"}
    if kind is Margin:
        fields = {k: None if v is None else from_data(v) for k, v in fields.items()}
    for name in fields:
        one_of(f"field of {data['kind']}", name, [f.name for f in dataclasses.fields(kind)])
    for f in dataclasses.fields(kind):
        if f.default is dataclasses.MISSING and f.name not in fields:
            raise InputError(f"the plain data of {data['kind']} lacks {f.name!r}, got {data!r}")
    return kind(**fields)


def short(value: Any) -> str:
    """A knob's value as the command line writes it, and ``parse`` reads it: the inverse of ``parse``.

    >>> short(Power(0.5, scale=10.0)), short({"kind": "Power", "exponent": 0.5, "of": "count"}), short(Constant(3.0))
    ('10*prior^0.5', 'n^0.5', '3')
    >>> short(0.01), short(True), short(1234567)
    ('0.01', 'true', '1234567')
    """
    if isinstance(value, dict):
        try:
            value = from_data(value)
        except InputError:  # of another version, or no margin at all
            return json.dumps(value, sort_keys=True)
    if isinstance(value, Constant):
        return short(value.value)
    if isinstance(value, Power):
        power = "" if value.exponent == 1 else f"^{short(value.exponent)}"
        return _times(value.scale) + ("n" if value.of == "count" else "prior") + power
    if isinstance(value, LogPrior):
        return f"{_times(value.tau)}log_prior"
    if isinstance(value, EffectiveNumber):
        return f"effective({short(value.beta)})"
    if isinstance(value, (PerClass, Margin)):
        return json.dumps(value.to_data(), sort_keys=True)
    if isinstance(value, bool):
        return str(value).lower()
    # all digits, because commands are made of this: the seed 1234567 is not 1.23457e+06
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _times(factor: float) -> str:
    return "" if factor == 1 else f"{short(factor)}*"


_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_POWER = re.compile(rf"^(?:({_NUMBER})\s*\*\s*)?(prior|count|n)(?:\s*(?:\^|\*\*)\s*\(?({_NUMBER})\)?)?$")
_LOG_PRIOR = re.compile(rf"^(?:({_NUMBER})\s*\*\s*)?log[_ ]?prior$")
_EFFECTIVE = re.compile(rf"^effective\(({_NUMBER})\)$")


def parse(text: str | float | dict[str, Any] | PerClass) -> PerClass:
    """Read the short form: ``3``, ``count``, ``n^0.5``, ``10*prior^0.5``, ``0.5*log_prior``, ``effective(0.999)``."""
    if isinstance(text, PerClass):
        return text
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return Constant(float(text))
    if isinstance(text, dict):
        made = from_data(text)
        if isinstance(made, PerClass):
            return made
    s = str(text).strip()
    if re.fullmatch(_NUMBER, s):
        return Constant(float(s))
    if m := _POWER.match(s):
        return Power(float(m[3] or 1), scale=float(m[1] or 1), of="prior" if m[2] == "prior" else "count")
    if m := _LOG_PRIOR.match(s):
        return LogPrior(float(m[1] or 1))
    if m := _EFFECTIVE.match(s):
        return EffectiveNumber(float(m[1]))
    raise InputError(
        f"cannot read {s!r} as a function of the class counts: write a number, 'count^0.5', '10*prior^0.5', "
        "'log_prior' or 'effective(0.999)'"
    )
