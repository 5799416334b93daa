"""Where things are kept between processes: folders that are only read, and the one of this user that is written.

Folders are asked in order: those of the system, which its administrator fills for all users, then the user's own.
Whatever is kept is named by a digest of all that it depends on, so it is the same in each folder.  Only the own folder
is ever written, limited or cleared.  What came with the package is asked before them where it holds kernels
(`kernels/built_in.py`), and after them otherwise.

The own folder is ``BOLT_NUMBA_CACHE_DIR``, or the cache folder of the user's home.  Where users share the first, as a
folder in which all may write and nobody may rename what is not his (mode 1777), each has a folder of his own in it.  A
user without a home, or with one that he cannot write to, has one below ``/tmp``.
"""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from bolt_numba.base.config import CACHE_DIR, SYSTEM_CACHE, TRUSTED_USERS, trusted_users
from bolt_numba.base.files.trusted import (
    PRIVATE_FOLDER,
    SHARED_FOLDER,
    CacheWarning,
    Content,
    UntrustedError,
    make_folder,
    map_trusted,
    obstacle,
    open_private,
    read_trusted,
    warn_untrusted,
    write_trusted,
)
from bolt_numba.base.records import record

_EFFECTIVE = getattr(os, "geteuid", None)
BUILT_IN = Path(__file__).parents[2] / "built_in"
"""The folder of what came with the package; only some wheels have it.  It is trusted as the package is."""
_OTHERS = 0o055
"""Bits of a mode that let others read a folder; nothing that is kept lets them write."""
_told: set[str] = set()
"""Warnings that have been given."""


@record(frozen=True)
class Folders:
    """read: in the order in which they are asked; ``own`` is one of them.

    system: those that the administrator fills.  own: the folder that is written.  is_named: the environment names it.
    obstacle: why it is not the user's cache folder, or "".
    """

    read: tuple[Path, ...]
    system: tuple[Path, ...]
    own: Path
    is_named: bool
    obstacle: str


def folders() -> Folders:
    """The folders of this process, as its environment says now."""
    env = os.environ
    system = env.get(SYSTEM_CACHE.name, SYSTEM_CACHE.default)  # none where it is set to nothing
    homes = env.get("HOME"), env.get("XDG_CACHE_HOME"), env.get("TMPDIR")
    return _folders(CACHE_DIR.value, system, homes, TRUSTED_USERS.value, _user())


def cache_root() -> Path:
    """The folder of all that this user keeps between processes."""
    return folders().own


def contents(name: str) -> Iterator[tuple[Path, bytes]]:
    """Files of a name like ``readers/x.json``, the folder asked first coming first, and what they hold."""
    for folder in folders().read:
        found = read_trusted(folder / name)
        if found is not None:
            yield folder / name, found


def maps(name: str) -> Iterator[tuple[Path, memoryview, os.stat_result]]:
    """The same as `base.files.trusted.map_trusted` has them."""
    for folder in folders().read:
        found = map_trusted(folder / name)
        if found is not None:
            yield folder / name, *found


def keep(name: str, data: Content, *, is_private: bool = False) -> OSError | None:
    """Write a file into the own folder; why that was not possible, or None.

    Users who may read the folder may read the file, unless it is private.
    """
    root = cache_root()
    try:
        make_root()
        write_trusted(root / name, data, readers=0 if is_private else _readers(root))
    except UntrustedError as error:
        warn_untrusted((root / name).parent, error)
        return error
    except OSError as error:
        return error
    return None


def open_kept(name: str) -> int:
    """A descriptor to write to a private file of the own folder, made unless it is there; raises OSError."""
    root = make_root()
    return open_private(root / name, _readers(root))


def _readers(root: Path) -> int:
    return stat.S_IMODE(root.stat().st_mode) & _OTHERS


def make_root() -> Path:
    """The own folder, made unless it is there; raises OSError, which says why, where nothing can be kept in it.

    One that the environment names is made as the umask says, but for writing.  One in the user's home is private.
    """
    found = folders()
    make_folder(found.own, SHARED_FOLDER if found.is_named else PRIVATE_FOLDER)
    return found.own


def tell_cost(version: str, failure: OSError | None = None) -> None:
    """Warn once where kernels that were compiled before are of no use, or those compiled now are not kept.

    version: folder of the kernels that this process can run.  failure: why one is not kept, as far as that is known.
    """
    found = folders()
    texts = [text for folder in found.read if folder != found.own and (text := _useless(folder, version, found.system))]
    remedy = f"let {CACHE_DIR.name} name a folder of this user"
    trouble = "" if isinstance(failure, UntrustedError) else obstacle(found.own) or (failure and failure.strerror)
    if trouble:
        cost = "each process compiles the kernels that it lacks, which takes 0.1 to 5 s each"
        texts.append(f"{found.own}: compiled kernels cannot be kept: {trouble}; {cost}: {remedy}")
    elif failure is None and found.obstacle:
        until = "compiled kernels are kept here until the system removes them"
        texts.append(f"{found.own}: {until}: {found.obstacle}; {remedy}")
    import warnings

    for text in texts:
        if text not in _told:
            _told.add(text)
            warnings.warn(text, CacheWarning, stacklevel=2)


def _useless(folder: Path, version: str, system: Sequence[Path]) -> str:
    """What to tell of a folder that exists, but of which nothing can be used, or ""."""
    try:
        os.listdir(folder)
    except PermissionError as error:
        return f"{folder}: compiled kernels cannot be read: {error.strerror}; its owner runs `bolt-numba cache share`"
    except OSError:
        return ""
    if folder in system and not (folder / version).is_dir():
        whose = "GPUs" if version.startswith("cuda-") else "this processor"
        return f"{folder}: has no kernels for {whose} and these versions of sources and packages ({version})"
    return ""


def _user() -> int:
    return _EFFECTIVE() if _EFFECTIVE is not None else -1


@functools.cache
def _folders(named: str, system: str, homes: tuple[str | None, ...], trusted: str, user: int) -> Folders:
    """homes, trusted: variables that it depends on, too."""
    present = tuple(Path(part) for part in system.split(os.pathsep) if part and os.path.isdir(part))
    if named:
        own = Path(os.path.abspath(os.path.expanduser(named)))  # where it is now, wherever the process goes
        if user >= 0 and _is_everybodys(own):
            others = [own / f"user-{n}" for n in (0, *sorted(trusted_users() or ()))]
            own = own / f"user-{user}"
            return Folders(_once(*present, *others, own), present, own, True, "")
        return Folders(_once(*present, own), present, own, True, "")
    folder = _home_folder()
    trouble = "the user has no home" if folder is None else obstacle(folder) if user >= 0 else ""
    if folder is not None and not trouble:
        return Folders(_once(*present, folder), present, folder, False, "")
    own = Path(os.environ.get("TMPDIR") or "/tmp") / f"bolt_numba-{user}"
    if folder is None:
        return Folders(_once(*present, own), present, own, False, trouble)
    also = (folder,) if os.access(folder, os.R_OK | os.X_OK) else ()  # made with the image, perhaps
    return Folders(_once(*present, *also, own), present, own, False, f"{folder}: {trouble}")


def _home_folder() -> Path | None:
    """The cache folder in the user's home, None where the system knows of no home."""
    import platformdirs

    with suppress(RuntimeError):  # newer versions raise it, older ones give a relative path
        folder = Path(platformdirs.user_cache_dir("bolt_numba"))
        return folder if folder.is_absolute() else None
    return None


def _is_everybodys(folder: Path) -> bool:
    """Whether others may write to a folder, but not rename what belongs to somebody else."""
    try:
        mode = folder.stat().st_mode
    except OSError:
        return False
    return bool(mode & stat.S_ISVTX and mode & (stat.S_IWGRP | stat.S_IWOTH))


def _once(*paths: Path) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(paths))


def drop_oldest(rows: Sequence[tuple[Path, os.stat_result]], limit: int) -> None:
    """Remove files, the first ones first, until all together take no more bytes than the limit; the last one stays."""
    nbytes = sum(found.st_size for _, found in rows)
    for path, found in rows[:-1]:
        if nbytes <= limit:
            return
        with suppress(OSError):
            path.unlink()
            nbytes -= found.st_size
