"""What fixes a model: sizes, mixers, positions and norms, in plain numbers and names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from course.inputs import require_choice, require_flag, require_number, require_positive

POSITIONS = ("none", "learned", "sinusoidal", "rope", "alibi")
NORMS = ("none", "pre", "post")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu}


@dataclass(frozen=True)
class TransformerConfig:
    """Everything that fixes a :class:`Transformer` up to its random numbers; plain JSON types only.

    ``E`` width of the stream, ``L`` blocks, ``H`` heads, ``D`` and ``Dv`` widths of a key and a
    value (None = ``E // H``). ``max_length``: rows of the learned position table; the other
    schemes know no limit. ``mixer``: a name, or a list of ``L`` names, one a block.
    ``mixer_options``: keyword arguments of the mixer, or a list of ``L`` of them. ``positions``,
    ``norm``: see ``POSITIONS``, ``NORMS``. ``residual``: add each part's output to the stream
    (False: it replaces the stream). ``hidden``: feed-forward width (None = 4·E, 0 = no
    feed-forward layer). ``tied``: the output matrix is the token table; only an untied output has
    a bias. ``scale``: factor of the scores (None = ``D**-0.5``).

    Raises ``ValueError`` that names the field, what came and what was expected.
    """

    vocab_size: int
    E: int = 128
    L: int = 1
    H: int = 4
    D: int | None = None
    Dv: int | None = None
    max_length: int = 128
    mixer: str | tuple[str, ...] = "softmax"
    mixer_options: Mapping[str, Any] | tuple[Mapping[str, Any], ...] = field(
        default_factory=dict, hash=False
    )
    positions: str = "none"
    norm: str = "pre"
    residual: bool = True
    hidden: int | None = None
    activation: str = "gelu"
    tied: bool = False
    dropout: float = 0.0
    scale: float | None = None

    def __post_init__(self) -> None:
        for item in fields(self):
            object.__setattr__(self, item.name, _plain(getattr(self, item.name)))
        # JSON knows lists only; a frozen object keeps tuples.
        for name in ("mixer", "mixer_options"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("vocab_size", "E", "H", "max_length"):
            require_positive(name, getattr(self, name))
        require_positive("L", self.L, minimum=0)
        for name in ("D", "Dv"):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name))
            elif self.E % self.H:
                raise ValueError(f"H: expected a divisor of E = {self.E}, got {self.H}")
        if self.hidden is not None:
            require_positive("hidden", self.hidden, minimum=0)
        require_choice("positions", self.positions, POSITIONS)
        require_choice("norm", self.norm, NORMS)
        require_choice("activation", self.activation, ACTIVATIONS)
        for name in ("residual", "tied"):
            require_flag(name, getattr(self, name))
        require_number("dropout", self.dropout)
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout: expected a number in [0, 1), got {self.dropout!r}")
        if self.scale is not None:
            require_number("scale", self.scale)
        for name, kind, meaning in (
            ("mixer", str, "a name"),
            ("mixer_options", Mapping, "a dict"),
        ):
            self._check_layers(name, kind, meaning)

    def _check_layers(self, name: str, kind: type, meaning: str) -> None:
        value = getattr(self, name)
        if isinstance(value, kind):
            return
        if not isinstance(value, tuple) or not all(isinstance(item, kind) for item in value):
            raise ValueError(f"{name}: expected {meaning} or a list of L of them, got {value!r}")
        if len(value) != self.L:
            raise ValueError(f"{name}: expected L = {self.L} entries, got {len(value)}")

    @property
    def key_width(self) -> int:
        """``D``, with the default filled in."""
        return self.E // self.H if self.D is None else self.D

    @property
    def value_width(self) -> int:
        """``Dv``, with the default filled in."""
        return self.E // self.H if self.Dv is None else self.Dv

    @property
    def hidden_width(self) -> int:
        """``hidden``, with the default filled in."""
        return 4 * self.E if self.hidden is None else self.hidden

    def layer(self, index: int) -> tuple[str, Mapping[str, Any]]:
        """Name and options of the mixer of block ``index``."""
        name = self.mixer if isinstance(self.mixer, str) else self.mixer[index]
        options = self.mixer_options
        return name, options[index] if isinstance(options, tuple) else options

    def to_dict(self) -> dict[str, Any]:
        """All fields, ready for ``json.dumps``."""
        plain = asdict(self)
        for name in ("mixer", "mixer_options"):
            if isinstance(plain[name], tuple):
                plain[name] = list(plain[name])
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TransformerConfig:
        """The inverse of :meth:`to_dict`; an unknown field is a ``ValueError``."""
        known = [f.name for f in fields(cls)]
        for name in values:
            require_choice("TransformerConfig", name, known)
        return cls(**values)


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's, which JSON and a checkpoint can hold; also inside containers."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(item) for item in value)
    return value


GPT2_SMALL = TransformerConfig(
    vocab_size=50_257, E=768, L=12, H=12, max_length=1_024, positions="learned", tied=True
)
