"""Small trained models that come with the course, each in one file of at most 2 MB.

A file holds the weights in float16 (``safetensors``, which can hold nothing that runs) and, as
text, the record of the run that made them and its words. ``course pretrained make NAME`` repeats
the run.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from course.config import TransformerConfig
from course.inputs import require_choice
from course.tasks.winograd import Winograd
from course.transformer import Transformer

FOLDER = Path(__file__).parent
NAMES = ("shakespeare", "winograd")


class Pretrained(NamedTuple):
    """A trained model in eval mode, its tokenizer and the record of its run.

    ``tokenizer``: for Shakespeare ``encode(text).ids`` and ``decode(ids)``, for the Winograd probes
    the task, a :class:`~course.tasks.winograd.Winograd`. ``record``: ``config``, ``curve``,
    ``result``, …, as of :func:`course.experiments.load`.
    """

    model: Transformer
    tokenizer: Any
    record: dict[str, Any]


def load(name: str, *, folder: Path | None = None) -> Pretrained:
    """The model ``name``, in float32 on the CPU.

    The weights were rounded to float16 when they were stored, which moves a logit by about 0.01 at
    most. ``folder``: where to look instead of in the package. Raises ``ValueError`` for an
    unknown name and ``FileNotFoundError`` or ``ValueError`` for a file that is missing or damaged.
    """
    require_choice("name", name, NAMES)
    path = (FOLDER if folder is None else Path(folder)) / f"{name}.safetensors"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: expected the stored model {name!r}, found no file")
    try:
        with safe_open(path, framework="pt") as stored:
            about = stored.metadata()
            weights = {key: stored.get_tensor(key).float() for key in stored.keys()}  # noqa: SIM118
        record = json.loads(about["record"])
        model = Transformer(TransformerConfig.from_dict(json.loads(about["model"])))
        model.to("cpu", torch.float32)  # also where a notebook has chosen other defaults
        model.load_state_dict(weights)
        tokenizer = _tokenizer(name, about["tokenizer"])
    except (SafetensorError, KeyError, TypeError, RuntimeError, ValueError) as error:
        raise ValueError(f"{path}: expected a stored model, got a damaged file ({error})") from None
    return Pretrained(model.eval(), tokenizer, record)


def held_out_text() -> str:
    """A scene or two of Shakespeare, 6,462 characters that no stored model was trained on.

    From *The Taming of the Shrew*, Act II: the first lines of the held-out part of
    :func:`course.tasks.text.load_shakespeare`. They are here so that a stored model can be measured
    without the whole text.
    """
    return (FOLDER / "held_out.txt").read_text(encoding="utf-8")


def _tokenizer(name: str, stored: str) -> Any:
    if name == "winograd":
        return Winograd(**json.loads(stored))
    from tokenizers import Tokenizer  # heavy, and only this needs it

    return Tokenizer.from_str(stored)


def store(path: Path, model: Transformer, tokenizer_json: str, record: dict[str, Any]) -> None:
    """Write ``path`` whole or not at all; ``model`` itself is left as it is.

    ``tokenizer_json``: of a tokenizer, or the fields of a Winograd task.
    """
    weights = {
        key: tensor.detach().cpu().to(torch.float16).contiguous()
        for key, tensor in model.state_dict().items()
    }
    about = {
        "model": json.dumps(model.config.to_dict()),
        "record": json.dumps(record, allow_nan=False),
        "tokenizer": tokenizer_json,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(save(weights, metadata=about))
        os.chmod(part, 0o644)  # mkstemp makes it private
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
