"""What others may have written is neither run nor believed: the cache, and the key that seals packed files."""

from __future__ import annotations

import itertools
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bolt_numba.base.digest import sha256
from bolt_numba.base.files import trusted
from bolt_numba.base.files.folder_index import remember, remembered
from bolt_numba.base.files.kept import keep
from bolt_numba.cli.app import run
from bolt_numba.ir import packed as stored
from bolt_numba.kernels import jit
from bolt_numba.runtime.reports import tune
from tests.test_jit import fresh, times

VICTIM, ATTACKER, GROUP = 61001, 61002, 62000
"""Users and a group that no system has; both users are in the group."""
as_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be other users")
pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="a system without owners of files")


@pytest.fixture(autouse=True)
def nothing_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trusted, "_warned", set())
    monkeypatch.setattr(trusted, "_sound", {})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that all users reach, which pytest's own is not."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


def as_user(user: int, work: Callable[[], Any]) -> Any:
    """What ``work`` returns, as JSON, in a child that is this user."""
    source, end = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.setgroups([GROUP])
            os.setresgid(GROUP, GROUP, GROUP)
            os.setresuid(user, user, user)
            with os.fdopen(end, "w") as answer:
                json.dump(work(), answer)
            status = 0
        finally:
            os._exit(status)
    os.close(end)
    with os.fdopen(source) as answer:
        text = answer.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return json.loads(text)


# ---------------------------------------------------------------------------------- every arrangement of owner and mode

Arrangement = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
"""Owner and mode of the folder above, of the folder and of the file."""
_OWNERS = (0, VICTIM, ATTACKER)


def _arrangements(above: tuple[int, ...], folder: tuple[int, ...], file: tuple[int, ...]) -> Iterator[Arrangement]:
    yield from itertools.product(*(tuple(itertools.product(_OWNERS, modes)) for modes in (above, folder, file)))


_FOLDERS, _FILES = (0o755, 0o775, 0o757, 0o777, 0o1777, 0o1775, 0o1757), (0o644, 0o664, 0o646, 0o666)
ARRANGEMENTS: list[Arrangement] = sorted(
    {
        *_arrangements((0o755, 0o775, 0o1777), (0o755, 0o757), (0o644, 0o664)),
        *_arrangements(_FOLDERS, (0o755,), (0o644,)),
        *_arrangements((0o755,), _FOLDERS, (0o644,)),
        *_arrangements((0o755,), (0o755,), _FILES),
    }
)


def _arranged(root: Path, number: int, arrangement: Arrangement) -> Path:
    above = root / str(number) / "above"
    file = above / "cache" / "file"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"good")
    for path, (owner, mode) in zip((file, file.parent, above), reversed(arrangement), strict=True):
        os.chown(path, owner, GROUP)
        path.chmod(mode)
    return file


def _attack(file: Path) -> None:
    """Try all that a user can to have other content read under this name, then make it look innocent."""
    opened = [p for p in (file.parent.parent, file.parent, file) if p.stat().st_uid == ATTACKER]
    modes = [(p, stat.S_IMODE(p.stat().st_mode)) for p in opened]
    for path in opened:
        path.chmod(0o777)
    with suppress(OSError):
        file.write_bytes(b"evil")
    if file.read_bytes() != b"evil":
        with suppress(OSError):
            file.rename(file.with_name("old"))
            file.write_bytes(b"evil")
    if not file.exists() or file.read_bytes() != b"evil":
        with suppress(OSError):
            file.parent.rename(file.parent.with_name("old"))
            file.parent.mkdir(mode=0o755)
            file.write_bytes(b"evil")
    for path, mode in modes:
        if path.exists() and path.stat().st_uid == ATTACKER:
            path.chmod(mode)


def _texts(files: list[Path]) -> list[str | None]:
    import warnings

    warnings.simplefilter("ignore")
    return [None if (found := trusted.read_trusted(file)) is None else found.decode() for file in files]


@as_root
def test_planted_files_are_refused_in_every_arrangement(public: Path) -> None:
    files = [_arranged(public, i, a) for i, a in enumerate(ARRANGEMENTS)]

    def attack() -> list[str]:
        for file in files:
            _attack(file)
        return [file.read_text() if file.exists() else "" for file in files]

    before = as_user(VICTIM, lambda: _texts(files))
    planted = as_user(ATTACKER, attack)
    read = as_user(VICTIM, lambda: _texts(files))
    assert "evil" not in read
    assert planted.count("evil") > len(ARRANGEMENTS) / 2, "the attack is one"
    for arrangement, text, became in zip(ARRANGEMENTS, before, planted, strict=True):
        assert became == "good" or text is None, f"could be changed and was believed: {arrangement}"
    safe = [a for a in ARRANGEMENTS if all(o != ATTACKER for o, _ in a) and a[1][1] == 0o755 and a[2][1] == 0o644]
    safe = [a for a in safe if a[0][1] == 0o755 or a[0][1] & stat.S_ISVTX]
    assert [a for a, text in zip(ARRANGEMENTS, before, strict=True) if text == "good"] == safe


@as_root
def test_what_another_user_wrote_is_refused_by_root_too(public: Path) -> None:
    file = public / "file"
    file.write_bytes(b"x")
    assert trusted.read_trusted(file) == b"x"
    os.chown(file, VICTIM, GROUP)
    with pytest.warns(trusted.UntrustedCacheWarning, match=f"got owner {VICTIM}"):
        assert trusted.read_trusted(file) is None


@as_root
def test_nothing_is_written_where_others_decide(public: Path) -> None:
    os.chown(public, ATTACKER, GROUP)
    with pytest.warns(trusted.UntrustedCacheWarning):
        assert not trusted.write_private(public / "cache" / "file", b"x")
    assert list(public.iterdir()) == []


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777, 0o1777])
def test_modes_that_let_others_write(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "cache" / "file"
    assert trusted.write_private(file, b"x")
    assert trusted.read_trusted(file) == b"x"
    file.parent.chmod(mode)
    with pytest.warns(trusted.UntrustedCacheWarning, match=f"{mode:04o}") as seen:
        found = trusted.read_trusted(file), trusted.read_trusted(file), trusted.write_private(file, b"y")
    assert found == (None, None, False)
    assert len(seen) == 1, "one warning for a folder"
    file.parent.chmod(0o755)
    assert trusted.read_trusted(file) == b"x"


def test_what_the_system_reads_in_pieces_is_read_whole() -> None:
    """As it does of more than 2 GiB: a pipe gives no more than it holds."""
    for given, wanted in ((b"abc" * 200_000, 600_000), (b"abc", 600_000), (b"abcdef", 4)):
        out, into = os.pipe()
        with ThreadPoolExecutor(1) as pool, open(out, "rb") as end, open(into, "wb", 0) as start:
            read = pool.submit(trusted.read_whole, end.fileno(), wanted)
            start.write(given)
            start.close()
            assert read.result() == given[:wanted]


@pytest.mark.parametrize("what", ["link", "pipe", "folder", "socket"])
def test_only_regular_files_are_read(tmp_path: Path, what: str) -> None:
    import socket

    file = tmp_path / "file"
    (tmp_path / "other").write_bytes(b"x")
    match what:
        case "link":
            file.symlink_to("other")
        case "pipe":
            os.mkfifo(file)
        case "folder":
            file.mkdir()
        case _:
            with socket.socket(socket.AF_UNIX) as made, suppress(OSError):
                made.bind(str(file))
    if what == "socket":  # opening it fails
        assert trusted.read_trusted(file) is None
        return
    with pytest.warns(trusted.UntrustedCacheWarning):
        assert trusted.read_trusted(file) is None
    assert trusted.write_private(file, b"y") == (what != "folder")
    assert (tmp_path / "other").read_bytes() == b"x"


def test_links_on_the_way_are_followed_where_nobody_else_made_them(public: Path) -> None:
    (public / "data").mkdir(mode=0o700)
    (public / "open").mkdir()
    (public / "open").chmod(0o777)
    (public / "near").symlink_to(public / "data" / ".." / "data")
    (public / "open" / "far").symlink_to("../data")
    assert trusted.write_private(public / "near" / "cache" / "file", b"x")
    assert trusted.read_trusted(public / "data" / "cache" / "file") == b"x"
    with pytest.warns(trusted.UntrustedCacheWarning, match="open: got owner"):
        assert trusted.read_trusted(public / "open" / "far" / "cache" / "file") is None
    if os.geteuid() == 0:
        os.lchown(public / "near", ATTACKER, GROUP)
        trusted._sound.clear()
        with pytest.warns(trusted.UntrustedCacheWarning, match="near: got owner"):
            assert trusted.read_trusted(public / "near" / "cache" / "file") is None
    (public / "a").symlink_to("b")
    (public / "b").symlink_to("a")
    assert trusted.read_trusted(public / "a" / "file") is None


def test_a_folder_that_was_replaced_is_looked_at_anew(tmp_path: Path) -> None:
    assert trusted.write_private(tmp_path / "cache" / "file", b"x")
    (tmp_path / "cache").rename(tmp_path / "old")
    assert trusted.write_private(tmp_path / "cache" / "file", b"y")
    assert trusted.read_trusted(tmp_path / "cache" / "file") == b"y"


# ------------------------------------------------------------------------------------------------ what is kept, and how


def _modes(folder: Path) -> set[tuple[bool, int]]:
    return {(p.is_dir(), stat.S_IMODE(p.stat().st_mode)) for p in (folder, *folder.rglob("*"))}


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o027, 0o077])
@pytest.mark.parametrize("found", [None, 0o700, 0o750, 0o755])
def test_what_is_kept_is_as_readable_as_its_folder(cache: Path, umask: int, found: int | None) -> None:
    """A folder that the environment names is made as the umask says, but that others never write to it."""
    if found is not None:
        cache.mkdir()
        cache.chmod(found)
    folder = 0o755 & ~umask if found is None else found
    before = os.umask(umask)
    try:
        assert keep(f"{jit.version_name()}/x.kernel", b"x") is None
        remember("kind", Path(__file__).parent, {"a": 1})
        tuner = tune.Tuner(1)
        tuner.measured, tuner._known = 1, {"k": tune.Choice("kernel", True)}
        tuner.save()
        assert len(stored.secret()) == 32
    finally:
        os.umask(before)
    assert remembered("kind", Path(__file__).parent) == {"a": 1}
    assert tune._read(tuner.path) == tuner._known
    names = {p.name if p.parent == cache else p.suffix for p in cache.rglob("*")}
    assert {".kernel", ".json", "seal.key", "kind"} <= names
    assert _modes(cache) == {(True, folder), (False, folder & 0o644), (False, 0o600)}
    assert stat.S_IMODE((cache / "seal.key").stat().st_mode) == 0o600


def _plant(file: Path, other: Path) -> None:
    """Put another kernel's code into a cache file, as one who knows the format would."""
    code = other.read_bytes()[20:]
    mark = sha256(f"{file.parent.name}/{file.name}\n".encode() + code).digest()[:16]
    file.write_bytes(other.read_bytes()[:4] + mark + code)


def test_a_planted_kernel_does_not_run(cache: Path) -> None:
    assert (times(fresh(3)), times(fresh(5))) == (21, 35)
    three, five = (jit._path(fresh(factor)) for factor in (3, 5))
    _plant(three, five)
    assert times(fresh(3)) == 35, "planting is possible for this user"
    assert times(fresh(5)) == 35
    three.parent.chmod(0o775)
    planted = three.read_bytes()
    with pytest.warns(trusted.UntrustedCacheWarning, match="chmod go-w"):
        assert times(fresh(3)) == 21
    assert three.read_bytes() == planted, "nothing is written there"


def test_a_kernel_in_the_place_of_another_is_compiled_anew(cache: Path) -> None:
    assert (times(fresh(3)), times(fresh(5))) == (21, 35)
    three, five = (jit._path(fresh(factor)) for factor in (3, 5))
    three.write_bytes(five.read_bytes())
    assert jit.read_kernel(three) is None
    assert times(fresh(3)) == 21
    assert jit.read_kernel(three) is not None
    other = three.parent.with_name("avx1024-0")
    other.mkdir(mode=0o700)
    (other / three.name).write_bytes(three.read_bytes())
    (other / three.name).chmod(0o600)
    assert jit.read_kernel(other / three.name) is None, "the same for another processor"


@pytest.mark.timeout(600)
def test_a_pipe_in_the_place_of_a_kernel_does_not_hang(cache: Path) -> None:
    assert times(fresh(3)) == 21
    file = jit._path(fresh(3))
    file.unlink()
    os.mkfifo(file)
    with pytest.warns(trusted.UntrustedCacheWarning, match="no regular file"):
        assert times(fresh(3)) == 21
    assert jit.read_kernel(file) is not None, "it was replaced"


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"a": 3}',
        '{"a": {"b": 1}}',
        '{"a": ["k"], "b": [1, true]}',
        "[" * 9999,
    ],
)
def test_what_steers_is_of_the_right_types(cache: Path, text: str) -> None:
    assert trusted.write_private(cache / "tuned.json", text.encode())
    assert tune._read(cache / "tuned.json") == {}
    assert trusted.write_private(cache / "tuned.json", b'{"a": ["k", 1], "b": ["k", true], "c": [["k"], true]}')
    assert tune._read(cache / "tuned.json") == {"b": tune.Choice("k", True)}


# -------------------------------------------------------------------------------------------------------- shared caches


@as_root
def test_a_cache_that_root_shared_serves_a_user(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOLT_NUMBA_CACHE_DIR", str(public / "cache"))
    (public / "cache").mkdir(mode=0o700)
    assert times(fresh(3)) == 21
    assert len(stored.secret()) == 32
    file = jit._path(fresh(3))

    def work() -> list[Any]:
        code = jit.read_kernel(file)
        is_written = trusted.write_private(file.with_name("new"), b"x")
        return [None if code is None else len(code), is_written, stored.secret().hex()]

    assert as_user(VICTIM, work) == [None, False, ""], "it is private"
    assert run(["cache", "share"]) == 0
    assert as_user(VICTIM, work) == [file.stat().st_size - 20, False, ""]
    assert stat.S_IMODE((public / "cache" / "seal.key").stat().st_mode) == 0o600
    file.parent.chmod(0o777)
    (file.parent / "link.kernel").symlink_to(public / "cache" / "seal.key")
    assert run(["cache", "share"]) == 1
    file.parent.chmod(0o755)
    part = public / "cache" / ".seal.key.1.0.tmp"
    part.write_bytes(b"k" * 32)
    part.chmod(0o600)
    assert run(["cache", "share"]) == 0
    assert stat.S_IMODE(part.stat().st_mode) == 0o600, "a key that was being written"
    file.chmod(0o666)
    assert run(["cache", "share"]) == 1, "others could have written it"
    assert stat.S_IMODE(file.stat().st_mode) == 0o666
    file.chmod(0o644)
    assert stat.S_IMODE((public / "cache" / "seal.key").stat().st_mode) == 0o600
    os.chown(public / "cache", ATTACKER, GROUP)
    trusted._sound.clear()  # a process looks once at the way to a folder
    with pytest.warns(trusted.UntrustedCacheWarning):
        assert jit.read_kernel(file) is None
    assert run(["cache", "share"]) == 1


# ------------------------------------------------------------------------------------------------------- the seal's key


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 33])
def test_a_damaged_key_is_made_anew(cache: Path, content: bytes) -> None:
    first = stored.secret()
    assert first == stored.secret()
    (cache / "seal.key").write_bytes(content)
    second = stored.secret()
    assert len(second) == 32
    assert second not in (first, content)
    assert stored.secret() == second


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o604])
def test_a_key_that_others_may_know_is_made_anew(cache: Path, mode: int) -> None:
    first = stored.secret()
    (cache / "seal.key").chmod(mode)
    with pytest.warns(trusted.UntrustedCacheWarning):
        second = stored.secret()
    assert len(second) == 32
    assert second != first
    assert stat.S_IMODE((cache / "seal.key").stat().st_mode) == 0o600


@as_root
def test_a_key_of_another_user_is_made_anew(cache: Path) -> None:
    first = stored.secret()
    os.chown(cache / "seal.key", ATTACKER, GROUP)
    with pytest.warns(trusted.UntrustedCacheWarning):
        assert stored.secret() not in (first, b"")


def test_all_who_make_the_key_at_once_get_the_same(cache: Path) -> None:
    for _ in range(3):
        source, end = os.pipe()
        children = []
        for _ in range(6):
            children.append(os.fork())
            if not children[-1]:
                with suppress(BaseException):
                    os.write(end, stored.secret())
                os._exit(0)
        os.close(end)
        for child in children:
            os.waitpid(child, 0)
        with os.fdopen(source, "rb") as answers:
            made = answers.read()
        assert len(made) == 6 * 32
        assert made == made[:32] * 6
        (cache / "seal.key").unlink()


def test_without_a_place_for_the_key_nothing_is_sealed(cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o777)
    with pytest.warns(trusted.UntrustedCacheWarning):
        assert stored.secret() == b""
