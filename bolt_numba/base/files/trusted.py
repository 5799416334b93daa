"""Files that run in this process or steer it: read only where nobody but this user and root could have written them.

A cached kernel is code, and what is kept beside it decides which code runs.  So the way to a file is walked folder by
folder, as OpenSSH does: every folder and link on it must belong to this user or to root, and no folder may let others
write.  One above the last may, where its sticky bit keeps others from renaming what is not theirs, as in ``/tmp``.
The file is opened through its folder, links are not followed, and owner and mode of what was opened decide.  What
fails is passed over, with one warning for each folder.

The environment may name more users who are trusted as much, or all.

The group bits of a mode bound what an access control list grants, so a list that lets others write is seen, too.
Systems without such owners (Windows) leave the guard to the rights of the user's own folder.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias, TypeVar

from bolt_numba.base.config import trusted_users

Made = TypeVar("Made")
Content: TypeAlias = "bytes | Sequence[bytes | memoryview]"
"""Of a file: one piece after another, where there are several."""
PRIVATE, PRIVATE_FOLDER = 0o600, 0o700
SHARED, SHARED_FOLDER = 0o644, 0o755
MAX_LINKS = 40
_HAS_OWNERS = hasattr(os, "geteuid") and os.open in os.supports_dir_fd


def _flags(*names: str) -> int:
    made = 0
    for name in names:
        made |= getattr(os, name, 0)
    return made


_FOLDER = _flags("O_PATH" if hasattr(os, "O_PATH") else "O_RDONLY", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC")
_OLD = _flags("O_RDONLY", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC")
"""Opening a pipe returns at once."""
_SAME = _flags("O_RDWR", "O_CREAT", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC")
_NEW = _flags("O_WRONLY", "O_CREAT", "O_EXCL", "O_NOFOLLOW", "O_CLOEXEC")

_sound: dict[str, tuple[str, int, int]] = {}
"""Folders whose way was found sound: by absolute path, where that leads, device and inode."""
_warned: set[str] = set()


class CacheWarning(UserWarning):
    """What is kept cannot be used, or not for long: the next process compiles kernels again."""


class UntrustedCacheWarning(CacheWarning):
    """Something kept was passed over, because others could have written it."""


class UntrustedError(OSError):
    """Others could have written what was found."""


def read_trusted(path: Path, *, secret: bool = False) -> bytes | None:
    """Content of a file that nobody else could have written; None where there is none.

    secret: nor read.
    """
    return use_trusted(path, lambda file, found: read_whole(file, found.st_size), secret=secret)


def read_whole(file: int, nbytes: int) -> bytes:
    """Bytes from where a descriptor stands, or all up to its end; the system reads at most 2 GiB at a time."""
    made = os.read(file, nbytes)
    while len(made) < nbytes and (more := os.read(file, nbytes - len(made))):
        made += more
    return made


def map_trusted(path: Path) -> tuple[memoryview, os.stat_result] | None:
    """The same as read-only memory, whose pages are read when they are looked at, and what the system says of it.

    What is kept is never written to in place, so it stays as it is.
    """
    return use_trusted(path, _mapped)


def _mapped(file: int, found: os.stat_result) -> tuple[memoryview, os.stat_result]:
    made = mmap.mmap(file, found.st_size, access=mmap.ACCESS_READ) if found.st_size else b""
    return memoryview(made), found


def use_trusted(path: Path, use: Callable[[int, os.stat_result], Made], *, secret: bool = False) -> Made | None:
    """What is made of a file that nobody else could have written; None where there is none.

    use: gets a descriptor, which is closed then, and what the system says of the file.
    """
    if not _HAS_OWNERS:
        with suppress(OSError), path.open("rb") as opened:
            return use(opened.fileno(), os.fstat(opened.fileno()))
        return None
    try:
        folder = _open_folder(str(path.parent))
        try:
            return _content(folder, path.name, secret, use)
        finally:
            os.close(folder)
    except UntrustedError as error:
        warn_untrusted(path.parent, error)
    except OSError:
        pass
    return None


def write_private(path: Path, data: bytes, *, is_first: bool = False) -> bool:
    """Write so that a reader sees all or nothing, for this user alone; whether that was possible.

    is_first: what is there stays.
    """
    try:
        write_trusted(path, data, is_first=is_first)
    except UntrustedError as error:
        warn_untrusted(path.parent, error)
        return False
    except OSError:
        return False
    return True


def write_trusted(path: Path, data: Content, *, readers: int = 0, is_first: bool = False) -> None:
    """The same for more users: those whom ``readers``, bits of a mode, lets read the file and folders that are made.

    Raises OSError, which says why, where that is not possible.
    """
    part = f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    if not _HAS_OWNERS:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(part).open("wb") as opened:
            opened.writelines([data] if isinstance(data, bytes) else data)
        path.with_name(part).replace(path)
        return
    folder = _open_folder(str(path.parent), PRIVATE_FOLDER | readers)
    try:
        _put(folder, part, path.name, data, PRIVATE | readers & SHARED, is_first)
    finally:
        os.close(folder)


def open_private(path: Path, readers: int = 0) -> int:
    """A descriptor to write to a file of this user alone, made unless it is there; raises OSError.

    readers: who may read folders that are made, as for `write_trusted`.
    """
    if not _HAS_OWNERS:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), str(path))
    folder = _open_folder(str(path.parent), PRIVATE_FOLDER | readers)
    try:
        file = os.open(path.name, _SAME, PRIVATE, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        _check(path.name, os.fstat(file))
    except OSError:
        os.close(file)
        raise
    return file


def make_folder(path: Path, mode: int = PRIVATE_FOLDER) -> None:
    """Make a folder unless there is one; raises OSError, which says why, where it could not be used.

    mode: of folders that are made; the umask takes bits from it.
    """
    if _HAS_OWNERS:
        os.close(_open_folder(str(path), mode, is_masked=True))
    else:
        path.mkdir(parents=True, exist_ok=True)


def unusable(folder: Path) -> str:
    """Why nothing in a folder is used, though it exists, or ""."""
    try:
        if _HAS_OWNERS:
            os.close(_open_folder(str(folder)))
        os.listdir(folder)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return str(error.strerror or error)
    return ""


def obstacle(folder: Path) -> str:
    """Why this user could not keep files in a folder, which need not be there; "" where he can.  Nothing is made."""
    at = Path(os.path.abspath(folder))
    while not os.path.lexists(at):
        at = at.parent
    try:
        if _HAS_OWNERS:
            place = _walked(str(at))
            _check(place, os.lstat(place), is_above=at != Path(os.path.abspath(folder)))
        mode = os.stat(at).st_mode
    except OSError as error:
        return str(error.strerror or error)
    if not stat.S_ISDIR(mode):
        return f"{at} is no folder"
    effective = os.access in os.supports_effective_ids
    return "" if os.access(at, os.W_OK | os.X_OK, effective_ids=effective) else f"{at} cannot be written"


def share(folder: Path, private: frozenset[str]) -> int:
    """Let all users read a folder and what is in it, but for these names; how many files they may read.

    Raises OSError where others may write, who could put a link to another file in the place of one, or could have
    written a file: it would be trusted from now on.  What was not written to its end stays private.
    """
    count = 0
    for place, inner, names in os.walk(folder):
        inner[:] = set(inner) - private
        make_folder(Path(place))
        os.chmod(place, SHARED_FOLDER)
        for name in sorted(set(names) - private):
            path = os.path.join(place, name)
            found = os.lstat(path)
            if not stat.S_ISREG(found.st_mode) or name.startswith("."):
                continue
            _check(path, found)
            os.chmod(path, SHARED)
            count += 1
    return count


def _content(folder: int, name: str, secret: bool, use: Callable[[int, os.stat_result], Made]) -> Made:
    try:
        file = os.open(name, _OLD, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UntrustedError(f"{name}: is a link") from error
        raise
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise UntrustedError(f"{name}: is no regular file")
        _check(name, found)
        if secret and (found.st_uid != os.geteuid() or found.st_mode & 0o077):
            raise UntrustedError(f"{name}: {_owner_and_mode(found)}, wanted this user alone to read it")
        return use(file, found)
    finally:
        os.close(file)


def _put(folder: int, part: str, name: str, data: Content, mode: int, is_first: bool) -> None:
    file = os.open(part, _NEW, PRIVATE, dir_fd=folder)
    try:
        with open(file, "wb") as opened:
            os.fchmod(file, mode)
            opened.writelines([data] if isinstance(data, bytes) else data)
        if is_first:
            os.link(part, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        else:
            os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(part, dir_fd=folder)


def _open_folder(path: str, mode: int = 0, is_masked: bool = False) -> int:
    """A descriptor of a sound folder; raises UntrustedError or another OSError.

    mode: what missing folders are made with, 0 to make none.  is_masked: the umask takes bits from it.
    """
    path = os.path.abspath(path)
    known = _sound.get(path)
    if known is not None:
        with suppress(OSError):
            folder, found = _opened(known[0])
            if (found.st_dev, found.st_ino) == known[1:]:
                return folder
            os.close(folder)
    place = _walked(path, mode, is_masked)
    folder, found = _opened(place)
    _sound[path] = place, found.st_dev, found.st_ino
    return folder


def _opened(place: str) -> tuple[int, os.stat_result]:
    folder = os.open(place, _FOLDER)
    try:
        found = os.fstat(folder)
        _check(place, found)
    except OSError:
        os.close(folder)
        raise
    return folder, found


def _walked(path: str, mode: int = 0, is_masked: bool = False) -> str:
    """Where a path leads when its links are followed; every folder above that is sound.

    From the root on, nobody else can change what has been looked at, so nothing changes between looking and use.
    """
    at, rest, links = os.path.sep, _names(path), 0
    while rest:
        name = rest.pop()
        if name == "..":
            at = os.path.dirname(at)
            continue
        _check(at, os.lstat(at), is_above=True)
        here = os.path.join(at, name)
        try:
            found = os.lstat(here)
        except FileNotFoundError:
            if not mode:
                raise
            with suppress(FileExistsError):
                os.mkdir(here, mode)
                if not is_masked:
                    os.chmod(here, mode)
            found = os.lstat(here)
        if not stat.S_ISLNK(found.st_mode):
            at = here
            continue
        _check(here, found, is_above=True)
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = os.readlink(here)
        at = os.path.sep if os.path.isabs(target) else at
        rest += _names(target)
    return at


def _names(path: str) -> list[str]:
    """Components, the first one last."""
    return [name for name in reversed(path.split(os.path.sep)) if name not in ("", ".")]


def _check(name: str, found: os.stat_result, is_above: bool = False) -> None:
    """Raise UntrustedError where others could have written; is_above: a folder or a link on the way."""
    mode = found.st_mode
    is_kept = is_above and (stat.S_ISLNK(mode) or mode & stat.S_ISVTX)
    is_writable = mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_kept
    if found.st_uid in (0, os.geteuid()) and not is_writable:
        return
    users = trusted_users()
    if users is not None and (is_writable or found.st_uid not in users):
        raise UntrustedError(f"{name}: {_owner_and_mode(found)}, wanted this user's or root's, writable by nobody else")


def _owner_and_mode(found: os.stat_result) -> str:
    return f"got owner {found.st_uid} and mode {stat.S_IMODE(found.st_mode):04o}"


def warn_untrusted(folder: Path, error: UntrustedError) -> None:
    """Say once for each folder that what is in it is not used."""
    if str(folder) in _warned:
        return
    _warned.add(str(folder))
    import warnings

    text = f"{folder}: what is kept here is not used: {error}; remove it or take the rights from others (chmod go-w)"
    warnings.warn(text, UntrustedCacheWarning, stacklevel=3)
