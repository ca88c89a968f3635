"""Frozen dataclasses from the program's JSON. Strict: what the classes do not know is an error, never left out."""
import collections.abc
import typing
from typing import Any, Dict, Optional, Type, TypeVar

from ._program import Call, Error

T = TypeVar("T", bound="Record")


class SchemaError(Error):
    """The program says something that these classes do not know: it is of another version than the package."""


class Record:
    """What all results share."""

    #: How the program was called, where this is a whole answer.
    call: typing.ClassVar[Optional[Call]] = None

    @classmethod
    def from_json(cls: Type[T], value: Dict[str, Any], call: Optional[Call] = None) -> T:
        """Of an object as `json.loads` makes it."""
        made = _record(cls, value, cls.__name__)
        if call is not None:
            object.__setattr__(made, "call", call)
        return made


_fields: Dict[type, Dict[str, Any]] = {}


def _record(cls: type, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise SchemaError(f"{where} is no object")
    if cls not in _fields:
        hints = typing.get_type_hints(cls)
        _fields[cls] = {name: hints[name] for name in cls.__dataclass_fields__}  # type: ignore[attr-defined]
    fields = _fields[cls]
    for key in value:
        if key not in fields:
            raise SchemaError(f"{where}.{key} is unknown to this version of the package")
    made = {key: _value(fields[key], item, f"{where}.{key}") for key, item in value.items()}
    try:
        return cls(**made)
    except TypeError as error:
        raise SchemaError(f"{where}: {error}") from None


def _value(kind: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Union:
        if value is None and type(None) in arguments:
            return None
        rest = [one for one in arguments if one is not type(None)]
        if len(rest) == 1:
            return _value(rest[0], value, where)
        if type(value) in rest:
            return value
    elif origin is tuple and isinstance(value, list):
        return tuple(_value(arguments[0], item, f"{where}[{at}]") for at, item in enumerate(value))
    elif origin is collections.abc.Mapping and isinstance(value, dict):
        return {key: _value(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    elif origin is typing.Literal:
        if value in arguments:
            return value
    elif isinstance(kind, type) and issubclass(kind, Record):
        return _record(kind, value, where)
    elif kind is float and type(value) in (int, float):
        return float(value)
    elif type(value) is kind:
        return value
    raise SchemaError(f"{where} is {value!r}, where this version of the package expects {kind}")
