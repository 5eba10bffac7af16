"""Column values as JSON: what JSON lacks is an object with one key that names the type. A map is a list of pairs.

Standard library only: the pyfluss driver imports this file in an environment of its own.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any


def encode(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return {"$bytes": value.hex()}
    if isinstance(value, Decimal):
        return {"$decimal": str(value)}
    if isinstance(value, dt.datetime):
        if value.tzinfo is None:
            return {"$timestamp": value.isoformat()}
        return {"$timestamp_ltz": value.astimezone(dt.UTC).replace(tzinfo=None).isoformat() + "Z"}
    if isinstance(value, dt.date):
        return {"$date": value.isoformat()}
    if isinstance(value, dt.time):
        return {"$time": value.isoformat()}
    if isinstance(value, list) and value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
        return {"$map": [[encode(key), encode(item)] for key, item in value]}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {key: encode(item) for key, item in value.items()}
    raise TypeError(f"no JSON form for {type(value).__name__}")


_DECODERS: dict[str, Callable[[str], Any]] = {
    "$float": float,
    "$bytes": bytes.fromhex,
    "$decimal": Decimal,
    "$timestamp": dt.datetime.fromisoformat,
    "$timestamp_ltz": dt.datetime.fromisoformat,
    "$date": dt.date.fromisoformat,
    "$time": dt.time.fromisoformat,
}


def decode(value: Any) -> Any:
    if isinstance(value, list):
        return [decode(item) for item in value]
    if isinstance(value, dict):
        if len(value) == 1:
            key, text = next(iter(value.items()))
            if key == "$map":
                return [(decode(pair[0]), decode(pair[1])) for pair in text]
            if key in _DECODERS:
                return _DECODERS[key](text)
        return {key: decode(item) for key, item in value.items()}
    return value
