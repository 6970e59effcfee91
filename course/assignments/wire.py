"""What goes through the pipe between the referee and the box: JSON, and arrays behind it.

A message is a length, a JSON text, and the bytes of its arrays one after another. Nothing is
pickled: what arrives is numbers, text, and tensors of plain dtypes, and a message that claims more
than it brings is refused. (An ``.npz`` file would be unpacked before its size is known.)
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: Largest message, in bytes.
LIMIT = 64 * 2**20
_DTYPES: dict[str, np.dtype[Any]] = {
    kind: np.dtype(kind)
    for kind in ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8")
}


class BadMessage(ValueError):
    """The bytes are no message: cut short, too long, or not what they say."""


def pack(message: Any) -> bytes:
    """A message of plain values, lists, dictionaries, tensors and arrays, as bytes.

    Of anything else only the name of its type is sent. ``ValueError`` above :data:`LIMIT`.
    """
    arrays: list[bytes] = []
    header = json.dumps(_plain(message, arrays)).encode()
    body = b"".join(arrays)
    if len(header) + len(body) > LIMIT:
        raise ValueError(f"message: expected at most {LIMIT:,} bytes, got {len(header + body):,}")
    return struct.pack(">QQ", len(header), len(body)) + header + body


def receive(read: Callable[[int], bytes]) -> Any:
    """The next message; ``read(n)`` gives exactly n bytes. Tuples come back as tuples."""
    header, body = struct.unpack(">QQ", read(16))
    if header + body > LIMIT:
        raise BadMessage("a message is too long")
    try:
        plain = json.loads(read(header))
        return _restored(plain, _Bytes(read(body)))
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError) as error:
        raise BadMessage(f"a message cannot be read ({type(error).__name__})") from None


def _plain(value: Any, arrays: list[bytes], depth: int = 0) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value if isinstance(value, str | None) else _number(value)
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return _array(value, arrays)
    if isinstance(value, list | tuple) and depth < 20:
        parts = [_plain(x, arrays, depth + 1) for x in value]
        return {"tuple": parts} if isinstance(value, tuple) else parts
    if isinstance(value, dict) and depth < 20:
        return {"dict": [[str(k), _plain(v, arrays, depth + 1)] for k, v in value.items()]}
    return {"type": type(value).__name__[:60]}


def _number(value: bool | int | float) -> Any:
    """JSON has neither NaN nor ∞, and whole numbers beyond a float's range go as text."""
    if isinstance(value, bool):
        return bool(value)
    if isinstance(value, int):
        return int(value) if abs(value) < 2**60 else {"int": hex(value)[:5_000]}
    return {"float": float(value).hex()}


def _array(value: Any, arrays: list[bytes]) -> Any:
    if isinstance(value, Tensor):
        if value.is_complex() or value.is_meta or value.is_nested:
            return {"type": "Tensor"}
        if value.numel() * value.element_size() > LIMIT:  # perhaps one number, expanded
            raise ValueError(f"message: expected at most {LIMIT:,} bytes, got a larger tensor")
        value = value.detach().cpu()
        value = value.to_dense() if value.layout != torch.strided else value
        kind = str(value.dtype).removeprefix("torch.")
        array = (value.float() if kind == "bfloat16" else value).contiguous().numpy()
    else:
        array, kind = np.asarray(value), str(np.asarray(value).dtype)
    if kind == "bool":
        array = array.astype(np.uint8)
    elif kind != "bfloat16" and kind not in _DTYPES:
        return {"type": f"{type(value).__name__}"}
    shape = list(array.shape)
    arrays.append(np.ascontiguousarray(array).tobytes())
    return {"array": kind, "shape": shape}


class _Bytes:
    """Hands out the body piece by piece."""

    def __init__(self, body: bytes) -> None:
        self.body, self.at = body, 0

    def take(self, count: int) -> bytes:
        if self.at + count > len(self.body):
            raise ValueError("cut short")
        self.at += count
        return self.body[self.at - count : self.at]


def _restored(value: Any, body: _Bytes) -> Any:
    if isinstance(value, list):
        return [_restored(x, body) for x in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return _tensor(value["array"], value["shape"], body)
    if "tuple" in value:
        return tuple(_restored(x, body) for x in value["tuple"])
    if "dict" in value:
        return {str(k): _restored(v, body) for k, v in value["dict"]}
    if "int" in value:
        return int(value["int"], 16)
    if "float" in value:
        return float.fromhex(value["float"])
    # Something that no tensor can be made of: an empty object whose type has that name.
    name = "".join(c for c in str(value["type"]) if c.isidentifier() or c.isdigit())
    return type(name[:60] or "object", (), {})()


def _tensor(kind: str, shape: list[int], body: _Bytes) -> Tensor:
    if len(shape) > 16 or not all(isinstance(n, int) and 0 <= n <= LIMIT for n in shape):
        raise ValueError("no shape")
    dtype = _DTYPES[{"bool": "uint8", "bfloat16": "float32"}.get(kind, kind)]
    raw = body.take(math.prod(shape) * dtype.itemsize)
    tensor = torch.from_numpy(np.frombuffer(raw, dtype).reshape(shape).copy())
    if kind == "bool":
        return tensor != 0
    return tensor.bfloat16() if kind == "bfloat16" else tensor
