"""The file of an unfinished training run: whole or absent, and continued only by its own run.

A checkpoint holds a description of the run it belongs to: the settings, the data, and the model
down to each module's own numbers. Two models can have parameters of the same shapes and be other
functions (two heads instead of four), and going on from the wrong weights would say nothing.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")


class UnusableCheckpoint(ValueError):
    """The file cannot be continued by this run; the message says why."""


class DamagedCheckpoint(UnusableCheckpoint):
    """The file is cut short, or its contents are not those that were written."""


def begun_again(run: Callable[[], T], path: Path | None) -> T:
    """What ``run`` returns; where it cannot go on from the file at ``path``, it begins anew.

    An unusable file is met before anything is trained, and is deleted.
    """
    try:
        return run()
    except UnusableCheckpoint:
        assert path is not None
        path.unlink()
        return run()


def prepare(path: str | Path) -> Path:
    """The path with ``~`` filled in, its folder made; ``ValueError`` unless it can be written."""
    try:
        # Through a link: what lies at its end is written, the link itself stays.
        path = Path(path).expanduser().resolve()
        if path.is_dir():
            raise ValueError(f"checkpoint: expected a file, got the folder {path}")
        path.parent.mkdir(parents=True, exist_ok=True)
        _part(path).touch()
        _part(path).unlink()
    except (OSError, RuntimeError) as error:  # RuntimeError: "~" of a user who has no home
        raise ValueError(
            f"checkpoint: expected a place that can be written, got {path} ({error})"
        ) from error
    return path


def write(path: Path, state: dict[str, Any]) -> None:
    """Store ``state``; a run that is killed meanwhile leaves the last good file."""
    try:
        torch.save(state, _part(path))
        os.replace(_part(path), path)
    finally:
        _part(path).unlink(missing_ok=True)


def read(path: Path, run: Mapping[str, Any]) -> dict[str, Any] | None:
    """What :func:`write` stored, on the CPU; None if there is no file.

    ``run``: the description that must be in it under ``"run"``. Raises :class:`DamagedCheckpoint`,
    or :class:`UnusableCheckpoint` for a file of another kind or of another run, naming what
    differs, or ``ValueError`` for one that may not be read.
    """
    if not path.exists():
        return None
    try:
        with open(path, "rb") as file:
            start = file.read(2)
        if start in (b"", b"P", b"PK") and not _whole(path):
            raise DamagedCheckpoint(
                f"checkpoint: expected a file that train() wrote, got {path}, which is damaged; "
                "delete it or choose another"
            )
        # To the CPU first: the machine that wrote it may have had a GPU that this one has not.
        state = torch.load(path, map_location="cpu", weights_only=True)
        stored = _flat(state["run"])
    except (DamagedCheckpoint, MemoryError):
        raise
    except OSError as error:
        raise ValueError(
            f"checkpoint: expected a file that can be read, got {path} ({error})"
        ) from error
    except Exception as error:  # a sound file of another kind raises almost anything
        raise UnusableCheckpoint(
            f"checkpoint: expected a file that train() wrote, got {path}, which holds something "
            f"else ({type(error).__name__}); choose another"
        ) from error
    here = _flat(run)
    differing = [
        f"{name} (there {stored.get(name, 'none')}, here {here.get(name, 'none')})"
        for name in {**here, **stored}
        if stored.get(name) != here.get(name)
    ]
    if differing:
        more = f" and {len(differing) - 4} more" if len(differing) > 4 else ""
        raise UnusableCheckpoint(
            f"checkpoint: expected the file of this run, got {path}, which differs in "
            f"{', '.join(differing[:4])}{more}; choose another"
        )
    return state


def describe(
    model: nn.Module, batches: Callable[..., Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """What a checkpoint belongs to, in plain values.

    The data is what ``batches.identity()`` says, as samplers of the course have it; any other
    function counts by its name alone.
    """
    config: Any = getattr(model, "config", None)
    identity = getattr(batches, "identity", None)
    kind = getattr(batches, "__qualname__", type(batches).__qualname__)
    return {
        **settings,
        "batches": identity() if callable(identity) else kind,
        "config": config.to_dict() if hasattr(config, "to_dict") else None,
        "modules": {_plain(name): _settings(module) for name, module in model.named_modules()},
        "tensors": {
            name: f"{x.dtype} {list(x.shape)}".removeprefix("torch.")
            for name, x in tensors(model).items()
        },
        "trained": {_plain(name): p.requires_grad for name, p in model.named_parameters()},
    }


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """The state of the model under the names it has when it is not compiled."""
    return {_plain(name): x for name, x in model.state_dict().items()}


def load_tensors(model: nn.Module, stored: Mapping[str, Tensor]) -> None:
    """Put into the model, compiled or not, what :func:`tensors` returned."""
    model.load_state_dict({name: stored[_plain(name)] for name in model.state_dict()})


def _plain(name: str) -> str:
    """Without what ``torch.compile`` inserts where it wraps a module."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def _settings(module: nn.Module) -> dict[str, Any]:
    """The numbers and names that a module was built with.

    Of modules that are neither PyTorch's nor the course's, only what they print of themselves:
    an attribute of theirs may be a counter that changes while it runs.
    """
    own: dict[str, Any] = {"kind": type(module).__qualname__}
    if not type(module).__module__.startswith(("torch.nn.", "course.")):
        return own | {"settings": module.extra_repr()}
    for name, value in vars(module).items():
        if isinstance(value, bool | int | float | str) and name != "training" and name[0] != "_":
            own[name] = value
        elif callable(value) and not isinstance(value, nn.Module) and name[0] != "_":
            own[name] = getattr(value, "__name__", type(value).__name__)
    return own


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    return dict(_items(values, before))


def _items(values: Mapping[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _items(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _whole(path: Path) -> bool:
    """Whether every part of the file has the checksum it was written with."""
    try:
        with zipfile.ZipFile(path) as file:
            return file.testzip() is None
    except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError):
        return False


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.{os.getpid()}.part")
