"""Every name of the specification's five pages, and what it is called here.

A page is a mapping from class to names. A name stands for itself, `name=spelling` is called differently here, and
`name!reason` is not offered. `python -m tests.spec.names` writes the table for the documentation.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DOCUMENT = Path(__file__).parents[2] / "docs" / "names.md"

_AWAITED = "an asynchronous constructor: await FlussConnection.create(config)"
_ROW = "a row is a dict or None"

PAGES: dict[str, dict[str, str]] = {
    "Admin operations": {
        "FlussConnection": "get_admin",
        "FlussAdmin": "create_database list_databases database_exists drop_database create_table get_table_info "
        "list_tables drop_table list_offsets list_partition_offsets get_latest_lake_snapshot",
        "OffsetSpec": "latest timestamp",
        "LakeSnapshot": "snapshot_id get_table_buckets get_bucket_offset",
        "module": "Schema TablePath TableDescriptor OffsetSpec TableBucket",
    },
    "Python API reference": {
        "Config": "bootstrap_servers writer_request_max_size writer_acks writer_retries writer_batch_size "
        "writer_batch_timeout_ms writer_bucket_no_key_assigner scanner_remote_log_prefetch_num "
        "remote_file_download_thread_num scanner_remote_log_read_concurrency scanner_log_max_poll_records "
        "scanner_log_fetch_max_bytes scanner_log_fetch_min_bytes scanner_log_fetch_wait_max_time_ms "
        "scanner_log_fetch_max_bytes_for_bucket connect_timeout_ms security_protocol security_sasl_mechanism "
        "security_sasl_username security_sasl_password",
        "FlussConnection": "create get_admin get_table close __enter__ __exit__",
        "FlussAdmin": "create_database drop_database list_databases database_exists get_database_info create_table "
        "drop_table get_table_info list_tables table_exists list_offsets list_partition_offsets create_partition "
        "drop_partition list_partition_infos get_latest_lake_snapshot get_server_nodes",
        "ServerNode": "id host port server_type uid",
        "FlussTable": "new_scan new_append new_upsert new_lookup get_table_info get_table_path has_primary_key",
        "TableScan": "project project_by_name create_log_scanner create_record_batch_log_scanner",
        "TableAppend": "create_writer",
        "TableUpsert": "partial_update_by_name partial_update_by_index create_writer",
        "TableLookup": "create_lookuper",
        "AppendWriter": "append write_arrow write_arrow_batch write_pandas flush",
        "UpsertWriter": "upsert delete flush",
        "WriteResultHandle": "wait",
        "Lookuper": "lookup",
        "LogScanner": "subscribe subscribe_buckets subscribe_partition subscribe_partition_buckets unsubscribe "
        "unsubscribe_partition poll poll_arrow poll_record_batch to_arrow to_pandas",
        "ScanRecords": "buckets records count is_empty keys values items __len__ __getitem__ __contains__ __iter__",
        "ScanRecord": "offset timestamp change_type row",
        "RecordBatch": "batch bucket base_offset last_offset",
        "Schema": "get_column_names get_column_types get_columns get_primary_keys",
        "TableDescriptor": "get_schema",
        "TablePath": "database_name table_name",
        "TableInfo": "table_id table_path num_buckets schema_id comment created_time modified_time get_primary_keys "
        "get_partition_keys get_bucket_keys has_primary_key is_partitioned get_schema get_column_names "
        "get_column_count get_properties get_custom_properties",
        "PartitionInfo": "partition_id partition_name",
        "DatabaseDescriptor": "comment get_custom_properties",
        "DatabaseInfo": "database_name created_time modified_time get_database_descriptor",
        "LakeSnapshot": "snapshot_id table_buckets_offset get_bucket_offset get_table_buckets",
        "TableBucket": "with_partition table_id bucket_id partition_id",
        "FlussError": "message error_code",
        "ErrorCode": "CLIENT_ERROR",
        "OffsetSpec": "earliest latest timestamp",
        "ChangeType": "AppendOnly Insert UpdateBefore UpdateAfter Delete short_string",
        "module": "EARLIEST_OFFSET",
    },
    "Rust API reference": {
        "Config": "bootstrap_servers writer_request_max_size writer_acks writer_retries writer_batch_size "
        "writer_batch_timeout_ms writer_bucket_no_key_assigner scanner_remote_log_prefetch_num "
        "remote_file_download_thread_num scanner_remote_log_read_concurrency scanner_log_max_poll_records "
        "scanner_log_fetch_max_bytes scanner_log_fetch_min_bytes scanner_log_fetch_wait_max_time_ms "
        "scanner_log_fetch_max_bytes_for_bucket connect_timeout_ms security_protocol security_sasl_mechanism "
        "security_sasl_username security_sasl_password",
        "FlussConnection": f"new!{_AWAITED}; get_admin get_table config",
        "FlussAdmin": "create_database drop_database list_databases database_exists get_database_info create_table "
        "drop_table get_table_info list_tables table_exists list_partition_infos list_partition_infos_with_spec "
        "create_partition drop_partition list_offsets list_partition_offsets get_latest_lake_snapshot "
        "get_server_nodes",
        "ServerNode": "id host port server_type uid",
        "FlussTable": "get_table_info new_append new_scan new_lookup new_upsert has_primary_key table_path",
        "TableAppend": "create_writer",
        "AppendWriter": "append append_arrow_batch flush",
        "TableScan": "project project_by_name create_log_scanner create_record_batch_log_scanner",
        "LogScanner": "subscribe subscribe_buckets subscribe_partition subscribe_partition_buckets unsubscribe "
        "unsubscribe_partition poll",
        "RecordBatchLogScanner": "subscribe=LogScanner.subscribe subscribe_buckets=LogScanner.subscribe_buckets "
        "subscribe_partition=LogScanner.subscribe_partition "
        "subscribe_partition_buckets=LogScanner.subscribe_partition_buckets unsubscribe=LogScanner.unsubscribe "
        "unsubscribe_partition=LogScanner.unsubscribe_partition poll=LogScanner.poll_record_batch "
        "is_partitioned=LogScanner.is_partitioned get_subscribed_buckets=LogScanner.get_subscribed_buckets",
        "ScanRecord": "row offset timestamp change_type",
        "ScanRecords": "count is_empty records records_by_buckets into_iter=ScanRecords.__iter__",
        "ScanBatch": "bucket batch base_offset last_offset num_records",
        "TableUpsert": "create_writer partial_update partial_update_with_column_names",
        "UpsertWriter": "upsert delete flush",
        "TableLookup": "create_lookuper",
        "Lookuper": "lookup",
        "LookupResult": f"get_single_row!{_ROW}; get_rows!{_ROW};",
        "WriteResultFuture": "await=WriteResultHandle.__await__",
        "Schema": "builder columns primary_key column_names primary_key_indexes",
        "SchemaBuilder": "column primary_key build",
        "TableDescriptor": "builder schema partition_keys has_primary_key properties custom_properties comment",
        "TableDescriptorBuilder": "schema log_format kv_format property custom_property custom_properties "
        "partitioned_by distributed_by comment build",
        "TablePath": "new=TablePath database table",
        "TableInfo": "table_path table_id schema_id schema primary_keys partition_keys num_buckets properties "
        "custom_properties comment created_time modified_time",
        "TableBucket": "new=TableBucket new_with_partition table_id partition_id bucket_id",
        "PartitionSpec": "new=PartitionSpec get_spec_map",
        "PartitionInfo": "get_partition_id get_partition_name",
        "DatabaseDescriptor": "builder comment custom_properties",
        "DatabaseDescriptorBuilder": "comment custom_properties custom_property build",
        "DatabaseInfo": "database_name created_time modified_time database_descriptor",
        "LakeSnapshot": "snapshot_id table_buckets_offset",
        "GenericRow": "new=GenericRow set_field from_data",
        "InternalRow": "is_null_at get_boolean get_byte get_short get_int get_long get_float get_double get_string "
        "get_decimal get_date get_time get_timestamp_ntz get_timestamp_ltz get_bytes get_binary get_char",
        "ChangeType": "AppendOnly Insert UpdateBefore UpdateAfter Delete short_string",
        "OffsetSpec": "Earliest Latest Timestamp",
        "ServerType": "CoordinatorServer=ServerType.COORDINATOR_SERVER TabletServer=ServerType.TABLET_SERVER",
        "LogFormat": "ARROW",
        "KvFormat": "COMPACTED",
        "DataTypes": "boolean tinyint smallint int bigint float double string bytes date time timestamp "
        "timestamp_ltz decimal char binary array map row",
        "DataField": "new=DataField name",
        "module": "EARLIEST_OFFSET",
    },
    "Log tables": {
        "FlussAdmin": "create_table get_table_info list_offsets",
        "FlussTable": "new_append new_scan",
        "AppendWriter": "append flush write_arrow write_arrow_batch write_pandas",
        "LogScanner": "subscribe subscribe_buckets unsubscribe to_arrow to_pandas poll poll_arrow poll_record_batch",
        "TableScan": "project project_by_name create_log_scanner create_record_batch_log_scanner",
        "ChangeType": "short_string",
    },
    "Python client guide": {
        "FlussConnection": "connect get_admin get_table close __enter__",
        "FlussAdmin": "create_database list_databases database_exists drop_database create_table get_table "
        "list_tables drop_table list_offsets list_partition_offsets create_partition list_partition_infos",
        "FlussTable": "new_append_writer new_scan new_upsert new_lookup",
        "TableUpsert": "upsert delete flush",
        "TableLookup": "lookup",
        "AppendWriter": "append flush write_arrow write_arrow_batch write_pandas",
        "WriteResultHandle": "wait",
        "TableScan": "create_batch_scanner create_log_scanner project project_by_name",
        "LogScanner": "subscribe subscribe_buckets subscribe_partition subscribe_partition_buckets to_arrow to_pandas "
        "poll poll_arrow poll_batches",
        "FlussError": "message",
        "module": "EARLIEST_OFFSET LATEST_OFFSET Config FlussConnection FlussError Schema TableDescriptor TablePath",
    },
}


class Name(NamedTuple):
    """A name of a page; without a spelling it has a reason."""

    page: str
    owner: str
    name: str
    spelling: str | None
    reason: str


def names() -> Iterator[Name]:
    """All names in the order of the pages."""
    for page, classes in PAGES.items():
        for owner, text in classes.items():
            while text := text.strip():
                head = text.split(None, 1)[0]
                if "!" in head:
                    entry, _, text = text.partition(";")
                    name, _, reason = entry.partition("!")
                    yield Name(page, owner, name, None, reason)
                    continue
                text = text[len(head) :]
                name, _, spelling = head.partition("=")
                prefix = "" if owner == "module" else f"{owner}."
                yield Name(page, owner, name, spelling or prefix + name, "")


def table() -> str:
    """The documentation's page."""
    lines = [
        "# Names of the specification",
        "",
        "Where each name of the specification's pages is found. All of them are the same in `fluss`, `fluss.aio` and",
        "`fluss.sync`; this page is written by `python -m tests.spec.names`.",
    ]
    page = ""
    for item in names():
        if item.page != page:
            page = item.page
            lines += ["", f"## {page}", "", "| name | here |", "|---|---|"]
        name = item.name if item.owner == "module" else f"{item.owner}.{item.name}"
        lines.append(f"| `{name}` | {f'`fluss.{item.spelling}`' if item.spelling else item.reason} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(table())
