"""Logging in: SASL PLAIN, who needs it, and how little a guesser learns."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fluss.model.errors import AuthenticationError, ConnectError
from fluss.protocol import api_keys, frames
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.api_keys import Api
from fluss.server.net.limits import Limits
from fluss.server.net.logins import DELAY_S_FIRST, LOOK_INTERVAL_S, FairSlots, Logins, SharedSecret, parse_plain
from fluss.server.net.users import PasswordFile, PasswordHash, add_user, read_users, remove_user, write_users
from tests.kit.kv_requests import create_kv_table, key, kv_batch, lookup, put
from tests.kit.thread_server import TIMEOUT_S, RunningServer, Wire, WireError, create_table
from tests.unit.server.calls import PASSWORD, authenticate, login

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


class Client:
    def __init__(self, host: str = "192.0.2.1", *, connected: bool = True, failed_logins: int = 0) -> None:
        self.peer_host = host
        self.failed_logins = failed_logins
        self.is_connected: Callable[[], bool] = lambda: connected


async def refusal_s(logins: Logins, user: str = "ada", address: str = "192.0.2.1") -> float:
    before = time.monotonic()
    with pytest.raises(AuthenticationError) as raised:
        await logins.check(user, "wrong", Client(address))
    assert raised.value.error_code == 46
    return time.monotonic() - before


async def test_each_failure_doubles_the_delay_of_its_answer_and_success_ends_it() -> None:
    logins = Logins(SharedSecret("ada", "right"), Limits())
    for failures in range(3):
        assert await refusal_s(logins) >= DELAY_S_FIRST * 2**failures * 0.9
    before = time.monotonic()
    await logins.check("ada", "right", Client("192.0.2.1"))
    assert time.monotonic() - before < DELAY_S_FIRST
    assert not logins._failures
    assert await refusal_s(logins) < DELAY_S_FIRST * 2


@pytest.mark.parametrize("other", [("ada", "192.0.2.2"), ("bob", "192.0.2.1")])
async def test_other_users_and_addresses_are_not_delayed(other: tuple[str, str]) -> None:
    logins = Logins(SharedSecret("ada", "right"), Limits())
    for _ in range(3):
        await refusal_s(logins)
    assert await refusal_s(logins, *other) < DELAY_S_FIRST * 2


async def test_addresses_of_one_ipv6_network_count_as_one() -> None:
    logins = Logins(SharedSecret("ada", "right"), Limits())
    for number in range(3):
        await refusal_s(logins, address=f"2001:db8::{number}")
    assert len(logins._failures) == 1
    await refusal_s(logins, address="2001:db8:1::1")
    await refusal_s(logins, address="fe80::1%eth0")
    assert len(logins._failures) == 3


class SlowPasswords:
    """Checks that end when they are told to; nothing is recognized but what was right before."""

    checks_max = 1

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.looked = 0
        self._known: set[str] = set()
        self._steps = asyncio.Semaphore(0)

    def step(self) -> None:
        self._steps.release()

    async def recognizes(self, user: str, password: str) -> bool:
        self.looked += 1
        return password in self._known

    async def check(self, user: str, password: str) -> bool:
        self.begun.append(password)
        await self._steps.acquire()
        if password == "right":
            self._known.add(password)
        return password == "right"


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


async def test_a_password_that_was_right_before_waits_for_nobody() -> None:
    passwords = SlowPasswords()
    logins = Logins(passwords, Limits())
    passwords.step()
    await logins.check("ada", "right", Client("127.0.0.1"))
    guesses = [asyncio.ensure_future(logins.check("ada", f"guess{n}", Client("127.0.0.1"))) for n in range(50)]
    await _until(lambda: len(passwords.begun) == 2)
    # Guesses of the same user from the same address are under way.
    for _ in range(3):
        await logins.check("ada", "right", Client("127.0.0.1"))
    assert len(passwords.begun) == 2
    for guess in guesses:
        guess.cancel()


async def test_addresses_take_turns_at_checks() -> None:
    passwords = SlowPasswords()
    logins = Logins(passwords, Limits())
    tasks = [asyncio.ensure_future(logins.check("ada", f"guess{n}", Client("192.0.2.1"))) for n in range(20)]
    await _until(lambda: len(passwords.begun) == 1)
    tasks.append(asyncio.ensure_future(logins.check("ada", "right", Client("192.0.2.2"))))
    tasks.append(asyncio.ensure_future(logins.check("bob", "guess", Client("192.0.2.3"))))
    await _until(lambda: passwords.looked == len(tasks))
    await asyncio.sleep(0)
    for number in range(1, 4):
        passwords.step()
        await _until(lambda number=number: len(passwords.begun) == number + 1)
    assert passwords.begun == ["guess0", "guess1", "right", "guess"]
    await tasks[20]
    for task in tasks:
        task.cancel()


async def test_logins_of_lost_connections_are_not_checked() -> None:
    passwords = SlowPasswords()
    logins = Logins(passwords, Limits())
    first = asyncio.ensure_future(logins.check("ada", "guess", Client("127.0.0.1")))
    await _until(lambda: len(passwords.begun) == 1)
    gone = [
        asyncio.ensure_future(logins.check("ada", f"gone{n}", Client("127.0.0.1", connected=False))) for n in range(50)
    ]
    right = asyncio.ensure_future(logins.check("ada", "right", Client("127.0.0.1")))
    passwords.step()
    passwords.step()
    await asyncio.wait_for(right, TIMEOUT_S)
    assert passwords.begun == ["guess", "right"]
    results = await asyncio.gather(*gone, return_exceptions=True)
    assert all(isinstance(result, ConnectError) for result in results)
    first.cancel()


async def test_recognizing_is_no_way_to_guess_quickly() -> None:
    """It takes no time, so it is done a hundred times a second at most for one user and address that were wrong."""

    passwords = SlowPasswords()
    logins = Logins(passwords, Limits())
    begin = time.monotonic()
    guesses = []
    for number in range(500):
        guesses.append(asyncio.ensure_future(logins.check("ada", f"guess{number}", Client("127.0.0.1"))))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert passwords.looked <= 2 + (time.monotonic() - begin) / LOOK_INTERVAL_S
    assert passwords.looked < 250
    for guess in guesses:
        guess.cancel()


async def test_within_an_address_users_take_turns_and_first_tries_go_first() -> None:
    slots = FairSlots(1)
    await slots.acquire("a", "u")
    served: list[str] = []

    async def wait(name: str, user: str, *, is_first: bool) -> None:
        await slots.acquire("a", user, is_first=is_first)
        served.append(name)
        slots.release()

    tasks = [asyncio.ensure_future(wait(f"again{number}", "ada", is_first=False)) for number in range(3)]
    tasks += [asyncio.ensure_future(wait(f"first{number}", "ada", is_first=True)) for number in range(4)]
    tasks.append(asyncio.ensure_future(wait("bob", "bob", is_first=True)))
    await asyncio.sleep(0)
    slots.release()
    await asyncio.wait_for(asyncio.gather(*tasks), TIMEOUT_S)
    assert served == ["first0", "bob", "first1", "first2", "again0", "first3", "again1", "again2"]
    assert slots._free == 1


async def test_a_cancelled_check_gives_its_slot_to_the_next() -> None:
    slots = FairSlots(1)
    await slots.acquire("a", "u")
    cancelled, waiting = (asyncio.ensure_future(slots.acquire("a", "u")) for _ in range(2))
    await asyncio.sleep(0)
    slots.release()
    cancelled.cancel()  # when its turn has come already
    await asyncio.wait_for(waiting, TIMEOUT_S)
    slots.release()
    await asyncio.wait_for(slots.acquire("b", "u"), TIMEOUT_S)


def test_refusals_do_not_fill_the_log(guarded: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    wires = [guarded.connect() for _ in range(9)]
    token = b"\0ada\0wrong"
    sent = [wire.send(api_keys.AUTHENTICATE, pb.AuthenticateRequest(protocol="PLAIN", token=token)) for wire in wires]
    for wire, request_id in zip(wires, sent, strict=True):
        assert wire.receive_error(request_id).code == 46
        wire.socket.close()
    assert caplog.text.count("login refused") == 4  # the first, second, fourth and eighth


async def test_the_table_of_failures_is_bounded() -> None:
    limits = Limits(failed_logins_max=4)
    logins = Logins(SharedSecret("ada", "right"), limits)
    for number in range(10):
        with pytest.raises(AuthenticationError):
            await logins.check(f"user{number}", "wrong", Client(f"192.0.2.{number}"))
        assert len(logins._failures) <= 4


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


@pytest.mark.parametrize(("host", "warns"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_a_server_that_others_reach_without_users_warns(
    tmp_path: Path, host: str, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with RunningServer(tmp_path, host=host):
        assert ("they may read, change and drop all tables; name users with --sasl-users" in caplog.text) is warns
