"""What puts do to the rows of a primary-key table, as its options say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from typing import Final

from fluss.model.aggregation import AggFunctionType
from fluss.model.descriptor import TableDescriptor
from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.schema import Schema
from fluss.model.tables import options
from fluss.model.types import TypeRoot

_VERSION_TYPES: Final = (TypeRoot.INTEGER, TypeRoot.BIGINT, TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ)


class MergeEngine(StrEnum):
    """What becomes of a row when another is put at its key; without an engine it is replaced."""

    FIRST_ROW = "FIRST_ROW"
    VERSIONED = "VERSIONED"
    AGGREGATION = "AGGREGATION"


_WHOLE_ROWS: Final = (MergeEngine.FIRST_ROW, MergeEngine.VERSIONED)


class DeleteBehavior(StrEnum):
    """What a delete does."""

    ALLOW = "ALLOW"
    IGNORE = "IGNORE"
    DISABLE = "DISABLE"


class ChangelogImage(StrEnum):
    """Whether the changelog has rows as they were before an update."""

    FULL = "FULL"
    WAL = "WAL"


def has_old_images(properties: Mapping[str, str]) -> bool:
    """Whether the changelog of a table with these properties has rows as they were before an update or a delete."""
    return options.choice(properties, options.CHANGELOG_IMAGE) != ChangelogImage.WAL


@dataclass(frozen=True, slots=True)
class MergeRules:
    """The rules of one table."""

    engine: MergeEngine | None = None
    version_column: str = ""  # of VERSIONED
    delete_behavior: DeleteBehavior | None = None  # None: what is usual for the engine
    image: ChangelogImage = ChangelogImage.FULL

    def __post_init__(self) -> None:
        if self.engine in _WHOLE_ROWS and self.delete_behavior is DeleteBehavior.ALLOW:
            raise _bad(f"The merge engine {self.engine} has no deletes: set {options.DELETE_BEHAVIOR} to IGNORE")
        if self.engine is MergeEngine.AGGREGATION and self.image is ChangelogImage.WAL:
            raise _bad(f"The merge engine {self.engine} needs {options.CHANGELOG_IMAGE} FULL")

    @classmethod
    def of(cls, descriptor: TableDescriptor) -> MergeRules:
        """The rules of a table, or code 39 for options that do not go together."""
        properties = descriptor.properties
        engine = properties.get(options.MERGE_ENGINE)
        behavior = properties.get(options.DELETE_BEHAVIOR)
        if not descriptor.has_primary_key:
            _refuse_without_key(properties)
        rules = cls(
            None if engine is None else MergeEngine(engine.upper()),
            properties.get(options.MERGE_ENGINE_VERSION_COLUMN, ""),
            None if behavior is None else DeleteBehavior(behavior.upper()),
            ChangelogImage(options.choice(properties, options.CHANGELOG_IMAGE)),
        )
        rules.check_schema(descriptor.schema)
        return rules

    def check_schema(self, schema: Schema) -> None:
        """Refuse columns, new ones too, that the engine can do nothing with (code 39)."""
        if self.engine is MergeEngine.VERSIONED:
            check_version_column(schema, self.version_column)
        if self.engine in _WHOLE_ROWS and schema.get_auto_increment_columns():
            # Nobody could write: rows would have to be whole, and the numbered column must be left out.
            raise _bad(f"The merge engine {self.engine} can't have an auto-increment column")
        for column in schema.columns:
            if column.agg_function is None:
                continue
            if self.engine is not MergeEngine.AGGREGATION:
                raise _bad(
                    f"The column {column.name!r} has the aggregate function {column.agg_function}: "
                    f"set {options.MERGE_ENGINE} to {MergeEngine.AGGREGATION}"
                )
            column.agg_function.check(column.name, column.data_type)
            _check_bitmap(column.name, column.agg_function.type)

    @property
    def deletes(self) -> DeleteBehavior:
        usual = DeleteBehavior.ALLOW if self.engine is None else DeleteBehavior.IGNORE
        return self.delete_behavior or usual


def _check_bitmap(name: str, function: str) -> None:
    if function == AggFunctionType.RBM64:
        raise _bad(
            f"The column {name!r} has the aggregate function rbm64, whose bytes only one Java library reads and "
            "writes: use rbm32"
        )
    if function == AggFunctionType.RBM32 and find_spec("pyroaring") is None:
        raise _bad(
            f"The column {name!r} has the aggregate function rbm32, which needs the package pyroaring where the "
            "server runs: pip install 'flussbett[bitmaps]'"
        )


def _refuse_without_key(properties: Mapping[str, str]) -> None:
    for key in (options.MERGE_ENGINE, options.DELETE_BEHAVIOR):
        if key in properties:
            raise _bad(f"{key} needs a primary key")


def check_version_column(schema: Schema, name: str) -> None:
    """Refuse a version column that does not exist or has no order that all clients agree on."""
    if not name:
        raise _bad(f"The merge engine VERSIONED needs {options.MERGE_ENGINE_VERSION_COLUMN}, the version column's name")
    for column in schema.columns:
        if column.name == name:
            if column.data_type.root in _VERSION_TYPES:
                return
            raise _bad(
                f"The version column {name!r} is {column.data_type}; use INT, BIGINT, TIMESTAMP or TIMESTAMP_LTZ"
            )
    raise _bad(f"The version column {name!r} is not among the columns {schema.column_names}")


def _bad(text: str) -> InvalidRequestError:
    return InvalidRequestError(f"{text}.", ErrorCode.INVALID_CONFIG_EXCEPTION)
