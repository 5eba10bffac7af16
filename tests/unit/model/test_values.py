"""Config, names, errors and scan results."""

from __future__ import annotations

import builtins
import copy
import pickle

import pytest

from fluss.formats.rows.records import ScanRecord, ScanRecords
from fluss.model.config import Config
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError, NotFoundError, error_from_code
from fluss.model.offsets import OffsetSpec
from fluss.model.paths import TableBucket, TablePath, check_database_name, check_table_name
from fluss.model.records import ChangeType


def test_config_defaults_are_the_specifications() -> None:
    config = Config()
    assert config.bootstrap_servers == "127.0.0.1:9123"
    assert config.writer_request_max_size == 10485760
    assert config.writer_acks == "all"
    assert config.writer_retries == 2147483647
    assert config.writer_batch_size == 2097152
    assert config.writer_batch_timeout_ms == 100
    assert config.writer_bucket_no_key_assigner == "sticky"
    assert config.scanner_log_max_poll_records == 500
    assert config.scanner_log_fetch_max_bytes == 16777216
    assert config.scanner_log_fetch_wait_max_time_ms == 500
    assert config.scanner_log_fetch_max_bytes_for_bucket == 1048576
    assert config.connect_timeout_ms == 120000
    assert config.security_protocol == "PLAINTEXT"


def test_config_spellings() -> None:
    config = Config({"client.writer.acks": "1", "request.max.size": "2048", "writer.batch.size": 10})
    assert (config.writer_acks, config.writer_request_max_size, config.writer_batch_size) == ("1", 2048, 10)
    config.writer_batch_size = 77
    assert config.writer_batch_size == 77
    assert Config(config.to_dict()) == config


def test_config_has_the_settings_of_newer_clients() -> None:
    keys = {
        "lookup.queue-size": 7,
        "lookup.max-batch-size": 6,
        "client.lookup.batch-timeout": 5,
        "lookup.max-inflight-requests": 4,
        "lookup.max-retries": 3,
        "writer.retry-backoff-ms": 2,
        "writer.retry-max-backoff-ms": 1,
    }
    config = Config({key: str(value) for key, value in keys.items()})
    assert (config.lookup_queue_size, config.lookup_max_batch_size, config.lookup_batch_timeout_ms) == (7, 6, 5)
    assert (config.lookup_max_inflight_requests, config.lookup_max_retries) == (4, 3)
    assert (config.writer_retry_backoff_ms, config.writer_retry_max_backoff_ms) == (2, 1)


def test_codes_of_newer_servers_have_names() -> None:
    numbers = {value for name, value in vars(ErrorCode).items() if name.isupper()}
    assert numbers >= {*range(58, 75)}
    assert ErrorCode.INVALID_BUCKET_ROUTING == 74


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("writer.aks", "1", "Did you mean 'writer.acks'"),
        ("writer.acks", "2", "one of all"),
        ("writer.batch-size", "much", "an integer"),
        ("writer.batch-size", True, "an integer"),
        ("writer.batch-size", -1, "an integer"),
        ("bootstrap.servers", 9123, "a string"),
        ("writer.enable-idempotence", "yes", "true or false"),
    ],
)
def test_bad_config_is_refused(key: str, value: object, text: str) -> None:
    with pytest.raises(InvalidRequestError, match=text) as error:
        Config({key: value})
    assert error.value.error_code == ErrorCode.INVALID_CONFIG_EXCEPTION


def test_config_hides_the_password() -> None:
    config = Config({"security.sasl.password": "hunter2"})
    assert "hunter2" not in repr(config)
    assert config.security_sasl_password == "hunter2"


@pytest.mark.parametrize(
    "name", ["../x", "a/b", "..", ".", "", "x" * 201, "__x", "\u00e4", "a\0b", "a b", "a.b", "a\n"]
)
def test_names_that_could_leave_the_directory_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        check_table_name(name)
    assert error.value.error_code == ErrorCode.INVALID_TABLE_EXCEPTION
    with pytest.raises(InvalidRequestError) as error:
        check_database_name(name)
    assert error.value.error_code == ErrorCode.INVALID_DATABASE_EXCEPTION


@pytest.mark.parametrize("name", ["a", "A-b_9", "_x", "x" * 200, "-"])
def test_good_names(name: str) -> None:
    check_table_name(name)
    check_database_name(name)


def test_errors_know_their_class_and_pickle() -> None:
    error = error_from_code(7, "no such table")
    assert isinstance(error, NotFoundError)
    assert not error.is_retriable
    assert error_from_code(12, "").is_retriable
    assert isinstance(error_from_code(25, "late"), builtins.TimeoutError)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.message, again.error_code) == (NotFoundError, "no such table", 7)
    assert type(error_from_code(12345, "new")) is FlussError


def test_paths_and_buckets() -> None:
    assert str(TablePath("db", "t")) == "db.t"
    assert repr(TablePath("db", "t")) == "TablePath('db', 't')"
    assert {TablePath("a", "b"): 1}[copy.copy(TablePath("a", "b"))] == 1
    assert repr(TableBucket.with_partition(1, 2, 3)) == "TableBucket(table_id=1, partition_id=2, bucket=3)"
    assert TableBucket(1, 3) != TableBucket(1, 3, 2)
    assert repr(OffsetSpec.timestamp(5)) == "OffsetSpec.timestamp(5)"


def test_scan_records_are_sequence_and_mapping() -> None:
    first, second = TableBucket(1, 0), TableBucket(1, 1)
    records = [ScanRecord(i, 0, ChangeType.AppendOnly, {"a": i}) for i in range(5)]
    scan = ScanRecords({first: records[:2], second: records[2:]})
    assert (len(scan), scan.count(), scan.is_empty()) == (5, 5, False)
    assert scan[0] is records[0]
    assert scan[-1] is records[4]
    assert scan[1:3] == records[1:3]
    assert scan[second] == records[2:]
    assert scan[TableBucket(1, 7)] == []
    assert list(scan) == records
    assert scan.keys() == scan.buckets() == [first, second]
    assert dict(scan.items()) == {first: records[:2], second: records[2:]} == scan.records_by_buckets()
    assert list(scan.values()) == [records[:2], records[2:]]
    assert second in scan
    assert TableBucket(1, 7) not in scan
    assert ScanRecords().is_empty()
    with pytest.raises(IndexError):
        scan[5]
    assert [t.short_string() for t in ChangeType] == ["+A", "+I", "-U", "+U", "-D"]
