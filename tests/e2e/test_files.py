"""Files through the official client, on a real server process."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.e2e.conftest import StartServer
from tests.e2e.harness import AT_ONCE, Server, exchange, head, wait_until

MIB = 2**20


@pytest.fixture
def client(toy: Server) -> Iterator[openai.OpenAI]:
    with official(toy) as client:
        yield client


def official(server: Server, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0)


def test_a_file_comes_back_as_it_was(client: openai.OpenAI) -> None:
    data = bytes(range(256)) * 20_000  # several pieces, and more than a JSON body may have
    name = "../../etc/ünï\u202e.jsonl"
    file = client.files.create(file=(name, io.BytesIO(data)), purpose="batch")
    assert (file.object, file.bytes, file.filename) == ("file", len(data), name)
    assert (file.purpose, file.status) == ("batch", "processed")
    assert file.expires_at == file.created_at + 30 * 24 * 3600
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).read() == data
    assert client.files.delete(file.id).deleted
    for ask in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError):
            ask(file.id)


def test_lists_have_pages(client: openai.OpenAI) -> None:
    for left in client.files.list(purpose="user_data"):  # by another test on this server
        client.files.delete(left.id)
    made = [client.files.create(file=b"x", purpose="user_data").id for _ in range(5)]
    client.files.create(file=b"x", purpose="evals")
    found = client.files.list(purpose="user_data", limit=2, order="asc")
    assert [file.id for file in found] == made
    first = client.files.list(purpose="user_data", limit=2)
    assert [file.id for file in first.data] == made[:2:-1] and first.has_more
    assert client.files.retrieve(made[0]).expires_at is None
    with pytest.raises(openai.NotFoundError):
        client.files.list(after="file-none")
    for asked in ({"limit": 0}, {"order": "up"}):
        with pytest.raises(openai.BadRequestError):
            client.files.list(**asked)


def test_expires_after(client: openai.OpenAI) -> None:
    after = {"anchor": "created_at", "seconds": 3600}
    file = client.files.create(file=b"x", purpose="batch", expires_after=after)
    assert file.expires_at == file.created_at + 3600
    for seconds in (3599, 30 * 24 * 3600 + 1):
        with pytest.raises(openai.BadRequestError) as caught:
            client.files.create(
                file=b"x", purpose="batch", expires_after={**after, "seconds": seconds}
            )
        assert caught.value.param == "expires_after"


@pytest.mark.parametrize("fields", [{"purpose": "none"}, {}, {"purpose": "batch", "other": "x"}])
def test_fields_are_checked(toy: Server, fields: dict[str, str]) -> None:
    reply = toy.http.post(toy.url + "/v1/files", data=fields, files={"file": ("a", b"x")})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] in ("purpose", "other")


def test_a_page_of_another_site_uploads_nothing(toy: Server) -> None:
    for page in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        files = {"file": ("a", b"x")}
        reply = toy.http.post(toy.url + "/v1/files", data={}, files=files, headers=page)
        assert reply.status_code == 403


def test_paths_are_no_paths(toy: Server) -> None:
    for name in ("../state.db", "..%2fstate.db", "%2e%2e", "lock", "file-../../x"):
        for method in ("GET", "DELETE"):
            reply = exchange(toy, head(method, f"/v1/files/{name}"))
            assert reply is not None and reply.status in (400, 404, 405)
            reply = exchange(toy, head("GET", f"/v1/files/{name}/content"))
            assert reply is not None and reply.status in (400, 404)


def test_limits_say_the_sizes(server: StartServer) -> None:
    with server(max_file_bytes=MIB, state_bytes=3 * MIB, state_entries=4) as running:
        client = official(running)
        with pytest.raises(openai.APIStatusError, match=f"exceeds {MIB} bytes") as caught:
            client.files.create(file=bytes(MIB + 1), purpose="batch")
        assert caught.value.status_code == 413
        with pytest.raises(openai.APIStatusError) as caught:
            client.files.create(file=bytes(2 * MIB), purpose="batch")
        assert caught.value.status_code == 413
        for _ in range(2):
            client.files.create(file=bytes(MIB), purpose="batch")
        with pytest.raises(openai.RateLimitError, match=r"raise --state-bytes"):
            client.files.create(file=bytes(MIB), purpose="batch")
        for _ in range(2):
            small = client.files.create(file=b"x", purpose="batch")
        with pytest.raises(openai.RateLimitError, match="5 stored entries, the limit is 4"):
            client.files.create(file=b"x", purpose="batch")
        client.files.delete(small.id)
        client.files.create(file=b"x", purpose="batch")


def test_files_outlive_the_server(server: StartServer, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with server(state_dir=str(state)) as running:
        kept = official(running).files.create(file=b"kept", purpose="user_data")
        gone = official(running).files.create(file=b"gone", purpose="user_data")
        official(running).files.delete(gone.id)
        running.process.kill()
    with server(state_dir=str(state)) as running:
        client = official(running)
        assert [file.id for file in client.files.list()] == [kept.id]
        assert client.files.content(kept.id).read() == b"kept"
        assert [path.name for path in (state / "files").iterdir()] == [kept.id]


def test_an_upload_that_ends_early_leaves_nothing(server: StartServer, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with server(state_dir=str(state)) as running:
        before = running.rss()
        for _ in range(3):
            with pytest.raises(OSError, match="disk of the client"):
                official(running).files.create(file=_broken(), purpose="batch")
        deadline = time.monotonic() + AT_ONCE
        while list((state / "files").iterdir()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        data = b"x" * (64 * MIB)
        file = official(running).files.create(file=data, purpose="batch")
        assert official(running).files.content(file.id).read() == data
        wait_until(lambda: running.rss() < before + 32 * MIB)


def _broken() -> io.RawIOBase:
    class Broken(io.RawIOBase):
        n_left = 8

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
            self.n_left -= 1
            if self.n_left < 0:
                raise OSError("the disk of the client fails")
            return len(buffer)

    return Broken()


def test_contents_that_are_gone_or_others_on_disk(server: StartServer, tmp_path: Path) -> None:
    with server(state_dir=str(tmp_path / "state")) as running, official(running) as client:
        file = client.files.create(file=b"eight by", purpose="batch")
        content = tmp_path / "state" / "files" / file.id
        for data in (b"eig", b"eight by and more"):
            content.write_bytes(data)
            with pytest.raises(openai.InternalServerError, match=f"{len(data)} bytes on disk"):
                client.files.content(file.id)
        content.unlink()
        with pytest.raises(openai.NotFoundError):
            client.files.content(file.id)
        with pytest.raises(openai.NotFoundError):
            client.batches.create(
                input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
            )
