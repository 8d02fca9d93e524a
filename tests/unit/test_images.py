"""Images that are hostile, broken or strange: a refusal that names no address, in bounded time and
memory; and what is written of those that are read."""

from __future__ import annotations

import asyncio
import base64
import io
import struct
import sys
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs
from msgspec.json import encode
from PIL import Image

from kvasir.config.serving import image_limit
from kvasir.core.errors import ConfigError, RequestError
from kvasir.core.params import TokenParams
from kvasir.core.tiles import media_at
from kvasir.serve.images import ImageReader, ImagesUnread
from kvasir.serve.reopened import with_pixels
from kvasir.serve.resolved import Envelope, Job, Resolved
from kvasir.serve.seen import Seen, SeenPrompt
from kvasir.serve.state.kept import Kept, ModelChanged, decode
from kvasir.serve.text import load_text
from kvasir.serve.wanted import MAX_BYTES, CapacityError, Size, check_bytes
from kvasir.tokenizer.messages import ImagePart, read_messages, seeing
from kvasir.validation.sampling import SamplingParams
from kvasir.vision.messages import Tiles, Uncut, Unreadable
from kvasir.vision.placeholders import Expanded, Placeholders
from kvasir.vision.preparing import Resizing, Slicing
from kvasir.vision.reader import MAX_PIXELS, _answer
from kvasir.vision.sight import Sight, check_pillow
from kvasir.weights.source import open_model
from tests import tiny_vision

SLICING = Slicing(32, 64, True, 1)


def encoded(image: Image.Image, form: str = "PNG", **more: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **more)
    return file.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, data: bytes) -> bytes:
    """Of a header that may lie."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def read(data: bytes) -> Tiles | Unreadable:
    return _answer(base64.b64encode(data), SLICING)


PLAIN = Image.new("RGB", (20, 10), (250, 3, 9))
FRAMES = [Image.new("RGB", (4, 4), (i, 0, 0)) for i in range(3)]
HOSTILE = {
    "nothing": (b"", "broken"),
    "zeros": (bytes(4096), "broken"),
    "text": (b"file:///etc/passwd", "broken"),
    "svg": (b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///x"/></svg>', "broken"),
    "cut": (encoded(PLAIN.resize((300, 300)), "JPEG")[:-900], "broken"),
    "bomb": (png(100_000, 100_000, zlib.compress(bytes(10_000))), "at most"),
    "no pixels": (png(0, 5, b""), "broken"),
    "lies": (png(4000, 4000, zlib.compress(bytes(99))), "broken"),
    "animation": (encoded(FRAMES[0], "GIF", save_all=True, append_images=FRAMES[1:]), "animation"),
    "moving": (encoded(FRAMES[0], "PNG", save_all=True, append_images=FRAMES[1:]), "animation"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "broken"),
    "tiff": (encoded(PLAIN, "TIFF"), "broken"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_images_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # as in the process
    data, why = HOSTILE[name]
    found = read(data)
    assert isinstance(found, Unreadable)
    assert why in found.message
    assert "0x" not in found.message and "object at" not in found.message


def test_exif_that_leads_nowhere_is_refused_or_ignored() -> None:
    """An offset to itself."""
    loop = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<HHHIII", 1, 0x8769, 4, 1, 8, 8)
    assert isinstance(read(encoded(PLAIN, "JPEG", exif=loop)), Tiles | Unreadable)


def test_no_base64() -> None:
    assert "base64" in str(_answer(b"A*A", SLICING))


@pytest.mark.parametrize("size", [(1, 1), (20, 10), (1, 900)])
def test_any_shape_becomes_whole_tiles(size: tuple[int, int]) -> None:
    found = read(encoded(PLAIN.resize(size)))
    assert isinstance(found, Tiles)
    assert len(found.pixels) == found.rows * found.columns + 1 <= SLICING.n_most
    assert {len(pixels) for pixels in found.pixels} == {32 * 32 * 3}


def test_a_reader_that_dies_takes_nobody_along() -> None:
    """Of memory, of time; and who leaves meanwhile gets nobody else's image."""
    large = encoded(Image.new("RGB", (4000, 4000)))
    assert MAX_PIXELS >= 4000 * 4000
    small = ImagePart(base64.b64encode(encoded(PLAIN)).decode(), "images[0]")
    heavy = ImagePart(base64.b64encode(large).decode(), "images[1]")

    async def run() -> None:
        for reader, why in (
            (ImageReader(megabytes=40), "died, with 40 MB|too much memory"),
            (ImageReader(seconds=0.05), "did not answer in 0.05 s"),
        ):
            with pytest.raises((RequestError, ImagesUnread), match=why) as caught:
                await reader.read([heavy], SLICING)
            assert caught.value.status == (400 if "memory" in str(caught.value) else 503)
            assert caught.value.status == 400 or caught.value.retry_after
            reader._seconds = 30.0
            left = asyncio.create_task(reader.read([heavy], SLICING))
            await asyncio.sleep(0.01)
            left.cancel()
            (found,) = await reader.read([small], SLICING)
            assert found == read(encoded(PLAIN))
            process = reader._worker._process
            reader.close()
            assert process is not None
            await process.wait()

    asyncio.run(run())


@pytest.mark.parametrize(
    "url",
    [
        *("//localhost/x", "file:///etc/passwd", "http:\\\\localhost", "http://a b/", "ftp://x"),
        *("data:text/html;base64,AA", "data:image/png,AA", "http://", "", None, 3, {"url": "x"}),
    ],
)
def test_only_data_uris_and_addresses_are_taken(url: object) -> None:
    part = {"type": "image_url", "image_url": url}
    with pytest.raises(RequestError, match="must be a data URI"):
        read_messages([{"role": "user", "content": [part]}], sees=True)


def test_images_belong_to_users() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    for role in ("system", "assistant"):
        with pytest.raises(RequestError, match="only parts of type text"):
            read_messages([{"role": role, "content": [part]}], sees=True)
    with pytest.raises(RequestError, match="only parts of type text"):
        read_messages([{"role": "user", "content": [part]}])
    (message,), notes = read_messages(
        [
            {
                "role": "user",
                "content": [
                    "see",
                    {**part, "image_url": {"detail": "high", "url": "data:image/png;base64,AA"}},
                ],
            }
        ],
        sees=True,
    )
    assert message.parts == ("see", ImagePart("AA", "messages[0].content[1].image_url", "png"))
    assert notes == ("messages[].content[].image_url.detail was ignored",)


def test_pixels_of_all_requests_are_bounded() -> None:
    some = Size(1, 1, 10, n_bytes=MAX_BYTES // 2 + 1)
    check_bytes(some, [])
    check_bytes(Size(1, 1, 10), [some, some])
    with pytest.raises(CapacityError, match="images, grammars and predictions of 256 MB"):
        check_bytes(some, [some])


@pytest.mark.parametrize("said", ["image=4", '{"image": 4}', " image=4 "])
def test_limits(said: str) -> None:
    assert image_limit(said) == 4


@pytest.mark.parametrize("said", ["", "4", "video=3", "image=-1", "image=x"])
def test_limits_that_are_none(said: str) -> None:
    with pytest.raises(ConfigError, match="image=N"):
        image_limit(said)


def test_what_a_user_writes_stands_for_no_image(tmp_path: Path) -> None:
    """Placeholders are those of the template; tokens of tiles are whole and in their order."""
    text = load_text(open_model(tiny_vision.write(tiny_vision.smolvlm(), tmp_path)))
    assert text.sight is not None
    words = "<image><fake_token_around_image>"
    part = {"type": "image"}
    content = [{"type": "text", "text": words}, part, {"type": "text", "text": words}]
    ids = text.template.encode([{"role": "user", "content": content}])
    assert ids.count(tiny_vision.IMAGE) == 1
    tiles = Tiles(1, 2, (b"a", b"b", b"c"))
    found = text.sight.placeholders.expand(ids, [tiles], first=7)
    n = tiny_vision.N_TOKENS
    assert len(found.ids) == len(ids) - 1 + 3 * n + 9
    starts = [media.start - 7 for media in found.media]
    assert [found.ids[x : x + n] for x in starts] == [(tiny_vision.IMAGE,) * n] * 3
    assert found.media == tuple(
        media_at(7 + x, n, pixels) for x, pixels in zip(starts, tiles.pixels, strict=True)
    )
    with pytest.raises(RequestError, match="writes 1 images of 2"):
        text.sight.placeholders.expand(ids, [tiles, tiles])


def test_a_slicing_reaches_the_process_as_it_is() -> None:
    assert (
        encode(SLICING) == b'{"type":"slicing","tile":32,"longest":64,"splits":true,"resample":1}'
    )


def test_without_the_extra_a_request_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_pillow()
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(RequestError, match=r"kvasir-llm\[vision\]") as caught:
        check_pillow()
    assert caught.value.status == 501


def test_what_is_kept_has_no_pixels_and_gets_the_same_again() -> None:
    data, other = (
        base64.b64encode(encoded(PLAIN.point(lambda level, x=x: level ^ x))).decode()
        for x in (0, 1)
    )
    tiles = read(base64.b64decode(data))
    assert isinstance(tiles, Tiles)
    media = tuple(media_at(4 * i, 4, pixels) for i, pixels in enumerate(tiles.pixels))
    prompt = (1,) * 4 * len(media)
    job = Job((prompt,), SamplingParams(), (TokenParams(seed=0, max_tokens=1),), media=media)
    resolved = Resolved(dialect="chat", model="m", fingerprint="f", job=job, images=(data,))
    kept = Kept(resolved, Envelope("id", 1), "root").encode()
    assert len(kept) < len(media[0].pixels)
    bare = decode(kept).resolved
    sight = Sight(SLICING, Placeholders(1, 4, lambda text: ()))

    async def run() -> None:
        reader = ImageReader()
        assert await with_pixels(bare, sight, reader) == resolved
        assert await with_pixels(resolved, None, reader) is resolved
        for changed in ((other,), (data, data), ("AAAA",)):
            with pytest.raises(ModelChanged, match="read otherwise"):
                await with_pixels(structs.replace(bare, images=changed), sight, reader)
        with pytest.raises(ModelChanged):
            await with_pixels(bare, None, reader)
        process = reader._worker._process
        reader.close()
        assert process is not None
        await process.wait()

    asyncio.run(run())


def test_pixels_are_hashed_beside_the_event_loop() -> None:
    image, threads = ImagePart("AA", "x"), []

    def expand(ids: Sequence[int], tiles: Sequence[Tiles], first: int) -> Expanded:
        threads.append(threading.current_thread())
        assert (list(tiles), first) == ([Tiles(0, 0, ())], 3)
        return Expanded((*ids, 9))

    sight: Any = SimpleNamespace(placeholders=SimpleNamespace(expand=expand))
    seen = Seen(sight, {image: Tiles(0, 0, ())})
    found = asyncio.run(seen.expand((1, 2), [seeing(("what?", image))], 3))
    assert found == SeenPrompt((1, 2, 9), (), ("AA",))
    assert threads != [threading.current_thread()]
    assert asyncio.run(seen.expand((1, 2), [], 3)) == SeenPrompt((1, 2))


def test_an_image_of_any_size_gets_its_pixels_again() -> None:
    how = Resizing(8, 64, 1024, 3)
    data = base64.b64encode(encoded(PLAIN)).decode()
    found = _answer(data.encode(), how)
    assert isinstance(found, Uncut)
    sight = Sight(how, Placeholders(1, 0, lambda tiles: ()))
    seen = sight.placeholders.expand((5, 1), [found])
    job = Job((seen.ids,), SamplingParams(), (TokenParams(seed=0, max_tokens=1),), media=seen.media)
    resolved = Resolved(dialect="chat", model="m", fingerprint="f", job=job, images=(data,))
    bare = decode(Kept(resolved, Envelope("id", 1), "root").encode()).resolved

    async def run() -> None:
        reader = ImageReader()
        assert bare != resolved == await with_pixels(bare, sight, reader)
        process = reader._worker._process
        reader.close()
        assert process is not None
        await process.wait()

    asyncio.run(run())
