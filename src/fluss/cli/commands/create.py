"""What `fluss table create` makes a table from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fluss.cli.commands.definition import descriptor_of, read_definition, split_properties
from fluss.model.descriptor import TableDescriptor
from fluss.model.errors import FlussError
from fluss.model.forms.type_text import parse_schema, type_text
from fluss.model.schema import Schema

# Options, by what a definition calls them.
_KEYS: Final = {
    "primary_key": "primary_key",
    "partition_key": "partition_keys",
    "bucket_key": "bucket_keys",
    "buckets": "buckets",
    "comment": "comment",
}


def defined(file: Path, options: Mapping[str, Any]) -> TableDescriptor:
    """The table of a definition, which says everything."""
    for name, value in options.items():
        if value:
            option = "property" if name == "properties" else name.replace("_", "-")
            raise FlussError(f"--{option} belongs into the definition, {file}.")
    return read_definition(file)


def descriptor_like(schema_text: str | None, data_file: str | None, options: Mapping[str, Any]) -> TableDescriptor:
    """A table with the columns of a text or of a data file, and the keys and properties of the options."""
    schema = _file_schema(str(data_file)) if schema_text is None else parse_schema(schema_text)
    definition: dict[str, Any] = {
        "columns": [
            {"name": column.name, "type": type_text(column.data_type)}
            | ({} if column.comment is None else {"comment": column.comment})
            for column in schema.columns
        ],
        "primary_key": schema.get_primary_keys(),
    }
    if options["primary_key"] and schema.get_primary_keys():
        raise FlussError("The primary key is given twice: in --schema, and by --primary-key.")
    definition |= {key: options[name] for name, key in _KEYS.items() if options[name]}
    definition["properties"], definition["custom_properties"] = split_properties(options["properties"])
    return descriptor_of(definition)


def _file_schema(path: str) -> Schema:
    """The columns of a data file, each of a type that holds all values that the file's type does."""
    import pyarrow as pa

    from fluss.cli.text.inputs import Input

    wider = {
        pa.null(): pa.string(),
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
        pa.float16(): pa.float32(),
    }
    given = Input(path).schema()
    return Schema(pa.schema([field.with_type(wider.get(field.type, field.type)) for field in given]))
