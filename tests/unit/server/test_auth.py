"""Logging in: SASL PLAIN, who needs it, and how little a guesser learns."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fluss.model.errors import AuthenticationError
from fluss.protocol import api_keys, frames
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.api_keys import Api
from fluss.server.auth import DELAY_S_FIRST, Logins, SharedSecret, parse_plain
from fluss.server.limits import Limits
from fluss.server.users import PasswordFile, PasswordHash, add_user, read_users, remove_user, write_users
from tests.unit.server.kv_support import create_kv_table, key, kv_batch, lookup, put
from tests.unit.server.support import TIMEOUT_S, RunningServer, Wire, WireError, create_table

PASSWORD = "correct horse battery"
# What one may ask before the login, by Apache Fluss's rule.
BEFORE_LOGIN = {"ApiVersions", "Authenticate"}


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    add_user(path, "ada", PASSWORD)
    return path


@pytest.fixture
def guarded(tmp_path: Path, users: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "data", sasl_users=users) as running:
        yield running


def login(wire: Wire, user: str = "ada", password: str = PASSWORD, mechanism: str = "PLAIN") -> pb.AuthenticateResponse:
    return authenticate(wire, b"\0" + user.encode() + b"\0" + password.encode(), mechanism)


def authenticate(wire: Wire, token: bytes, mechanism: str = "PLAIN") -> pb.AuthenticateResponse:
    return wire.call(api_keys.AUTHENTICATE, pb.AuthenticateRequest(protocol=mechanism, token=token))


def refused(wire: Wire, token: bytes, mechanism: str = "PLAIN") -> WireError:
    with pytest.raises(WireError) as raised:
        authenticate(wire, token, mechanism)
    assert raised.value.code == 46
    return raised.value


def test_login_then_everything_works(guarded: RunningServer) -> None:
    with guarded.connect() as wire:
        first = login(wire)
        assert first.HasField("challenge")
        assert first.challenge == b""
        # pyfluss answers the empty challenge.
        assert not authenticate(wire, b"").HasField("challenge")
        create_table(wire)


def test_mechanism_is_matched_without_case_and_authorization_id_may_be_the_user(guarded: RunningServer) -> None:
    with guarded.connect() as wire:
        authenticate(wire, b"ada\0ada\0" + PASSWORD.encode(), "plain")
        create_table(wire)


@pytest.mark.parametrize(
    ("token", "mechanism"),
    [
        (b"\0ada\0wrong", "PLAIN"),
        (b"\0nobody\0" + PASSWORD.encode(), "PLAIN"),
        (b"\0ada\0", "PLAIN"),
        (b"\0\0" + PASSWORD.encode(), "PLAIN"),
        (b"ada\0" + PASSWORD.encode(), "PLAIN"),
        (b"\0ada\0" + PASSWORD.encode() + b"\0", "PLAIN"),
        (b"eve\0ada\0" + PASSWORD.encode(), "PLAIN"),
        (b"\0ada\0\xff\xfe", "PLAIN"),
        (b"\0ada\0" + b"x" * 5_000, "PLAIN"),
        (b"", "PLAIN"),
        (b"\0ada\0" + PASSWORD.encode(), "SCRAM-SHA-256"),
    ],
)
def test_refused_logins_leave_the_connection_usable(guarded: RunningServer, token: bytes, mechanism: str) -> None:
    with guarded.connect() as wire:
        refused(wire, token, mechanism)
        with pytest.raises(WireError) as raised:
            create_table(wire)
        assert raised.value.code == 46
        login(wire)
        create_table(wire)


def test_wrong_user_and_wrong_password_look_the_same(guarded: RunningServer) -> None:
    with guarded.connect() as wire:
        wrong_password = refused(wire, b"\0ada\0wrong")
        wrong_user = refused(wire, b"\0nobody\0wrong")
    assert wrong_password.text == wrong_user.text


def test_authenticate_without_sasl(wire: Wire) -> None:
    error = refused(wire, b"\0ada\0x")
    assert "connect without SASL" in error.text
    create_table(wire)


@pytest.mark.parametrize("api", api_keys.ALL, ids=lambda api: api.name)
def test_every_api_states_and_keeps_its_rule(
    guarded_once: RunningServer, api: Api[pb.ErrorResponse, pb.ErrorResponse]
) -> None:
    assert api.needs_login == (api.name not in BEFORE_LOGIN)
    with guarded_once.connect() as wire:
        for version in range(api.version_max + 1):
            # An empty body: most are unreadable, which must not be told before the login.
            request_id = wire.send_raw(api.key, b"", version)
            response = wire.receive()
            assert response.request_id == request_id
            if api.needs_login:
                assert response.kind == frames.ERROR
                assert pb.ErrorResponse.FromString(bytes(response.body)).error_code == 46
        # The connection is open.
        login(wire)
        request_id = wire.send_raw(api.key, b"")
        response = wire.receive()
        if api.needs_login and response.kind == frames.ERROR:
            assert pb.ErrorResponse.FromString(bytes(response.body)).error_code != 46


def test_rows_are_neither_written_nor_read_before_the_login(guarded: RunningServer) -> None:
    """Good requests, not only empty ones."""
    with guarded.connect() as wire:
        login(wire)
        table_id = create_kv_table(wire)
        put(wire, table_id, kv_batch([(1, "secret", None)]))
    insert = pb.LookupRequest(table_id=table_id, insert_if_not_exists=True, acks=-1, timeout_ms=1_000)
    insert.buckets_req.add(bucket_id=0, keys=[key(3)])
    whole = pb.PrefixLookupRequest(table_id=table_id)
    whole.buckets_req.add(bucket_id=0, keys=[b""])
    scan = pb.ScanKvRequest(call_seq_id=0, batch_size_bytes=1_000)
    scan.bucket_scan_req.table_id, scan.bucket_scan_req.bucket_id = table_id, 0
    lease = pb.AcquireKvSnapshotLeaseRequest(lease_id="lease", lease_duration_ms=60_000)
    with guarded.connect() as wire:
        with pytest.raises(WireError) as raised:
            put(wire, table_id, kv_batch([(2, "forged", None)], deletes=[1]))
        assert raised.value.code == 46
        for api, request in (
            (api_keys.LOOKUP, insert),
            (api_keys.PREFIX_LOOKUP, whole),
            (api_keys.SCAN_KV, scan),
            (api_keys.LIMIT_SCAN, pb.LimitScanRequest(table_id=table_id, bucket_id=0, limit=10)),
            (api_keys.ACQUIRE_KV_SNAPSHOT_LEASE, lease),
        ):
            error = wire.receive_error(wire.send_raw(api.key, request.SerializeToString()))
            assert error.code == 46
            assert "secret" not in error.text
        login(wire)
        assert lookup(wire, table_id, 1, 2, 3) == [(1, "secret", None), None, None]
    assert not guarded.server.context.storage.catalog.leases()


@pytest.fixture(scope="module")
def guarded_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    directory = tmp_path_factory.mktemp("guarded")
    add_user(directory / "users", "ada", PASSWORD)
    with RunningServer(directory / "data", sasl_users=directory / "users") as running:
        yield running


def test_large_frames_only_after_the_login(guarded: RunningServer) -> None:
    body = bytes(guarded.config.limits.frame_bytes_before_login_max)
    with guarded.connect() as wire:
        assert wire.receive_error(wire.send_raw(api_keys.PRODUCE_LOG.key, body)).code == 13
    with guarded.connect() as wire:
        login(wire)
        assert wire.receive_error(wire.send_raw(api_keys.METADATA.key, body)).code == 2


def test_shared_secret(tmp_path: Path) -> None:
    secret = SharedSecret("embedded", "s3cret")
    with RunningServer(tmp_path / "data", authenticator=secret) as running, running.connect() as wire:
        refused(wire, b"\0embedded\0s3cre")
        refused(wire, b"\0ada\0s3cret")
        login(wire, "embedded", "s3cret")
        create_table(wire)


def test_changed_users_are_noticed(guarded: RunningServer, users: Path) -> None:
    with guarded.connect() as wire:
        login(wire)
    add_user(users, "bob", "b")
    add_user(users, "ada", "new")
    with guarded.connect() as wire:
        refused(wire, b"\0ada\0" + PASSWORD.encode())
        login(wire, "ada", "new")
    with guarded.connect() as wire:
        login(wire, "bob", "b")
    remove_user(users, "bob")
    with guarded.connect() as wire:
        refused(wire, b"\0bob\0b")


def test_a_damaged_users_file_leaves_the_users_read_before(
    guarded: RunningServer, users: Path, caplog: pytest.LogCaptureFixture
) -> None:
    users.write_text(f"ada:{PASSWORD}\n")
    with guarded.connect() as wire:
        login(wire)
    assert "line 1 is not a user" in caplog.text
    assert PASSWORD not in caplog.text


def test_server_does_not_start_without_its_users_file(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="can't be read"), RunningServer(tmp_path / "data", sasl_users=tmp_path / "no"):
        pass


def test_passwords_are_nowhere_in_logs_errors_and_reprs(
    guarded: RunningServer, users: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    guess = "guessed-pa55word"
    texts = []
    with guarded.connect() as wire:
        texts.append(refused(wire, b"\0ada\0" + guess.encode()).text)
        texts.append(refused(wire, b"\0ada\0" + guess.encode() + b"\xff").text)
        texts.append(refused(wire, guess.encode() * 3).text)
        login(wire)
    logins = guarded.server.context.logins
    assert logins is not None
    file = PasswordFile(users)
    texts += [caplog.text, repr(guarded.config), repr(vars(logins)), repr(vars(file)), users.read_text()]
    texts.append(repr(vars(SharedSecret("u", guess))))
    assert "login refused for user 'ada'" in caplog.text
    for text in texts[:-1]:
        assert guess not in text
        assert PASSWORD not in text
    assert guess not in repr(SharedSecret("u", guess))


async def test_each_failure_doubles_the_delay_and_success_ends_it() -> None:
    logins = Logins(SharedSecret("ada", "right"), Limits())
    for failures in range(1, 4):
        before = time.monotonic()
        with pytest.raises(AuthenticationError):
            await logins.check("ada", "wrong", "192.0.2.1")
        elapsed_s = time.monotonic() - before
        assert elapsed_s >= (DELAY_S_FIRST * 2 ** (failures - 2) if failures > 1 else 0) * 0.9
    before = time.monotonic()
    await logins.check("ada", "right", "192.0.2.1")
    assert time.monotonic() - before >= DELAY_S_FIRST * 4 * 0.9
    before = time.monotonic()
    await logins.check("ada", "right", "192.0.2.1")
    assert time.monotonic() - before < DELAY_S_FIRST
    assert not logins._attempts


@pytest.mark.parametrize("other", [("ada", "192.0.2.2"), ("bob", "192.0.2.1")])
async def test_user_and_address_are_each_delayed(other: tuple[str, str]) -> None:
    logins = Logins(SharedSecret("ada", "right"), Limits())
    for _ in range(2):
        with pytest.raises(AuthenticationError):
            await logins.check("ada", "wrong", "192.0.2.1")
    before = time.monotonic()
    with pytest.raises(AuthenticationError):
        await logins.check(other[0], "wrong", other[1])
    assert time.monotonic() - before >= DELAY_S_FIRST * 2 * 0.9


async def test_many_guesses_at_once_are_no_faster_and_do_not_pile_up() -> None:
    limits = Limits(logins_waiting_max=2)
    logins = Logins(SharedSecret("ada", "right"), limits)
    guesses = [asyncio.ensure_future(logins.check("ada", "wrong", "192.0.2.1")) for _ in range(20)]
    done = await asyncio.wait_for(asyncio.gather(*guesses, return_exceptions=True), TIMEOUT_S)
    codes = [error.error_code for error in done if isinstance(error, AuthenticationError)]
    assert len(codes) == 20
    # Few were checked; the others were told to come back, without a hint whether they were right.
    assert codes.count(46) <= 1 + limits.logins_waiting_max
    assert codes.count(51) >= 20 - 1 - limits.logins_waiting_max


async def test_the_table_of_failures_is_bounded() -> None:
    limits = Limits(failed_logins_max=4)
    logins = Logins(SharedSecret("ada", "right"), limits)
    for number in range(10):
        with pytest.raises(AuthenticationError):
            await logins.check(f"user{number}", "wrong", f"192.0.2.{number}")
        assert len(logins._attempts) <= 4


async def test_unknown_users_take_as_long(users: Path) -> None:
    file = PasswordFile(users)

    async def time_s(user: str) -> float:
        best_s = 1e9
        for _ in range(5):
            before = time.thread_time()
            file._check(user, "wrong")
            best_s = min(best_s, time.thread_time() - before)
        return best_s

    known_s, unknown_s = await time_s("ada"), await time_s("nobody")
    assert 0.5 < known_s / unknown_s < 2
    assert known_s > 0.005


def test_plain_tokens() -> None:
    assert parse_plain("\0ädä\0pässwörd".encode()) == ("ädä", "pässwörd")


def test_users_file(tmp_path: Path) -> None:
    path = tmp_path / "users"
    assert add_user(path, "ada", "one")
    assert not add_user(path, "ada", "two")
    assert add_user(path, "bob", "three")
    assert path.stat().st_mode & 0o777 == 0o600
    stored = read_users(path)
    assert list(stored) == ["ada", "bob"]
    assert stored["ada"].matches("two")
    assert not stored["ada"].matches("one")
    assert [entry.name for entry in tmp_path.iterdir()] == ["users"]
    write_users(path, {})
    assert read_users(path) == {}


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a\nb", "a" * 201])
def test_bad_user_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(Exception, match="A user name has"):
        add_user(tmp_path / "users", name, "x")
    assert not (tmp_path / "users").exists()


@pytest.mark.parametrize(
    "text",
    [
        "scrypt$1$8$1$AAAA$" + "A" * 44,
        "scrypt$16383$8$1$AAAA$" + "A" * 44,
        "scrypt$1073741824$8$1$AAAA$" + "A" * 44,
        "scrypt$16384$8$1$AAAA$AAAA",
        "md5$16384$8$1$AAAA$AAAA",
        "scrypt$x$8$1$AAAA$AAAA",
        "",
    ],
)
def test_bad_hashes_are_not_users(text: str) -> None:
    assert PasswordHash.parse(text) is None
