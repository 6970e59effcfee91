"""Mixers: what moves information between positions. One file a family, each registered by name.

The way of a token through a hybrid model, for example: ``Transformer.embed`` makes its vector; each
``Block`` hands the normed stream to its mixer, here ``HybridMixer``; that calls ``SoftmaxMixer``
for the window and ``LinearMixer`` for what is far, each with its own queries, keys and values
(``MultiHeadAttention.heads``), and adds what they return. The formulas are in
:func:`course.attention.softmax_attention` and :func:`course.linear.linear_attention`, and these two
choose the kernel too: a mixer only passes its option ``impl`` on. While a text is written token by
token, ``decode`` takes the place of ``forward`` and carries a state: keys and values of the window
(:class:`course.cache.KeyValueCache`), sums for what is far (:class:`course.state.LinearState`).

To add a mixer: a file here with a ``Mixer`` under :func:`register_mixer`, and its import below.
"""

from course.mixers.base import MIXERS, Mixer, build_mixer, register_mixer
from course.mixers.conv import ConvMixer, ConvState
from course.mixers.delta import DeltaMixer
from course.mixers.gated import GatedMixer
from course.mixers.hybrid import HybridMixer, HybridState
from course.mixers.linear import LinearMixer
from course.mixers.mean import MeanMixer, MeanState, NoMixer
from course.mixers.softmax import SoftmaxMixer, window_mixer

__all__ = [
    "MIXERS",
    "ConvMixer",
    "ConvState",
    "DeltaMixer",
    "GatedMixer",
    "HybridMixer",
    "HybridState",
    "LinearMixer",
    "MeanMixer",
    "MeanState",
    "Mixer",
    "NoMixer",
    "SoftmaxMixer",
    "build_mixer",
    "register_mixer",
    "window_mixer",
]
