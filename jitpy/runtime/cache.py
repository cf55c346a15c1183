"""The disk cache: content-keyed files in the user's cache folder.

An entry is one file, `<folder>/<2 hex>/<key><suffix>`, written to a temporary name and renamed, so that a reader in
any process sees a whole entry or none. A trailer holds size and SHA-256 of the content: a damaged entry counts as
missing and is removed. ELF files load and link with a trailer behind them, so that `lookup` may hand out the path
itself; `read` returns the content without the trailer. Nothing is unpickled.

A folder that belongs to somebody else is refused. Where the folder cannot be used or is full, entries go to a folder of
this process, which is removed at exit.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import hashlib
import itertools
import os
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from jitpy import config, logs

_MAGIC = b"\njitpy-entry-1 "
_TRAILER_BYTES = len(_MAGIC) + 16 + 1 + 64 + 1  # magic, size (16 hex), blank, SHA-256 (64 hex), newline
_STALE_SCRATCH_SECONDS = 24 * 3600
_SCRATCH_ROOM = 8 << 20  # what a compiler may need for one kernel
_BLOCK = bytes(1 << 20)

_lock = threading.Lock()
_counter = itertools.count()
_usable: dict[str, bool] = {}  # folder -> could it be used; one check per process
_private: Path | None = None
_private_pid = 0
_warned: set[str] = set()


def folder() -> Path:
    """The folder in use: the user's cache folder, or this process's own where that one cannot be used."""
    if not config.disk_cache:
        return _private_folder()
    wanted = wanted_folder()
    usable = _usable.get(str(wanted))
    if usable is None or (usable and not wanted.is_dir()):
        usable = _usable[str(wanted)] = _prepare(wanted)
    return wanted if usable else _private_folder()


def is_lasting() -> bool:
    """Whether entries outlive this process: the folder in use is not one of its own."""
    return config.disk_cache and folder() == wanted_folder()


def has_room(base: Path, size: int) -> bool:
    """Whether a folder takes this many bytes more. They are written: quotas do not show in what is free."""
    try:
        if shutil.disk_usage(base).free < size:
            return False
        with tempfile.TemporaryFile(dir=base, buffering=0) as file:
            is_written = all(file.write(_BLOCK) == len(_BLOCK) for _ in range(size // len(_BLOCK) + 1))
            os.fsync(file.fileno())
        return is_written
    except OSError:
        return False


def key_of(*parts: str | bytes) -> str:
    """A key (64 hex digits) of everything that decides an entry's content. The boundaries between parts count."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.hexdigest()


def lookup(key: str, suffix: str) -> Path | None:
    """The path of an undamaged entry, with its trailer still on (fine for ELF files), or None."""
    for base in _bases():
        path = _path(base, key, suffix)
        content = _checked(path)
        if content is not None:
            logs.log("cache", lambda path=path: f"hit {path.name}")  # type: ignore[misc]
            return path
    logs.log("cache", lambda: f"miss {key}{suffix}")
    return None


def read(key: str, suffix: str) -> bytes | None:
    """The content of an undamaged entry, or None."""
    for base in _bases():
        content = _checked(_path(base, key, suffix))
        if content is not None:
            logs.log("cache", lambda: f"hit {key}{suffix}")
            return content
    logs.log("cache", lambda: f"miss {key}{suffix}")
    return None


def store(key: str, suffix: str, content: bytes) -> Path:
    """Write an entry; its path. Where the cache folder is full or read-only, that is in this process's folder.

    OSError only where no folder takes it.
    """
    base = folder()
    try:
        return _write(base, key, suffix, content)
    except OSError as error:
        private = _private_folder()
        if base == private:
            raise
        warn_once(f"cannot write to the cache folder {base} ({error.strerror}); compiled code goes to {private}")
        return _write(private, key, suffix, content)


def store_file(key: str, suffix: str, source: Path) -> Path:
    """Like `store`, with the content of a file."""
    return store(key, suffix, source.read_bytes())


def drop(path: Path) -> None:
    """Remove an entry that turned out to be unusable, so that it is made again."""
    logs.log("cache", f"drop {path.name}")
    with contextlib.suppress(OSError):
        path.unlink()


def clear() -> None:
    """Remove every entry of the cache folder (and of this process's own). Libraries already loaded stay loaded."""
    for base in _bases():
        for child in base.iterdir() if base.is_dir() else ():
            if child.is_dir() and not child.is_symlink() and _is_ours(child.name):
                shutil.rmtree(child, ignore_errors=True)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder for one build, removed afterwards; below the cache folder where that one is writable and has room."""
    base = folder()
    try:
        has_space = shutil.disk_usage(base).free >= _SCRATCH_ROOM
        path = Path(tempfile.mkdtemp(prefix="tmp-", dir=base if has_space else _private_folder()))
    except OSError:
        path = Path(tempfile.mkdtemp(prefix="tmp-", dir=_private_folder()))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def lock(name: str, timeout: float) -> Iterator[bool]:
    """Hold a lock that all processes on this cache folder share; yields False if not had within `timeout` seconds.

    It is the kernel's file lock, so that a process that dies gives it back: there are no stale locks. A caller without
    the lock does the work too; entries are written atomically, so that costs time only.
    """
    try:
        handle = os.open(folder() / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield False
        return
    try:
        yield _acquire(handle, timeout)
    finally:
        os.close(handle)


def _acquire(handle: int, timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR):
                return False  # a file system without locks
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)


def wanted_folder() -> Path:
    """The user's cache folder, whether or not it can be used."""
    if config.cache_dir:
        return Path(config.cache_dir).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    if base and os.path.isabs(base):
        return Path(base) / "jitpy"
    return Path(os.path.expanduser("~")) / ".cache" / "jitpy"


def _prepare(path: Path) -> bool:
    """Make the folder, private to its user. False, with one warning, where it cannot be used."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        status = path.stat()
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "not a folder")
        if status.st_uid != os.geteuid():
            # Whoever owns the folder could plant a library that this process would load.
            warn_once(f"the cache folder {path} belongs to another user; it is not used")
            return False
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o077:
            path.chmod(mode & 0o700)
    except OSError as error:
        warn_once(f"cannot use the cache folder {path} ({error.strerror or error}); compiled code is not kept")
        return False
    _remove_stale_scratch(path)
    return True


def _remove_stale_scratch(base: Path) -> None:
    limit = time.time() - _STALE_SCRATCH_SECONDS
    with contextlib.suppress(OSError):
        for child in os.scandir(base):
            if child.name.startswith("tmp-") and child.stat(follow_symlinks=False).st_mtime < limit:
                shutil.rmtree(child.path, ignore_errors=True)


def _private_folder() -> Path:
    """This process's own folder, made on first use; a forked child makes its own."""
    global _private, _private_pid
    with _lock:
        if _private is None or _private_pid != os.getpid():
            _private, _private_pid = Path(tempfile.mkdtemp(prefix="jitpy-")), os.getpid()
            atexit.register(_remove_private, _private, _private_pid)
        return _private


def _remove_private(path: Path, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(path, ignore_errors=True)


def _bases() -> list[Path]:
    """Where entries may be: the folder in use, then this process's own if it has one."""
    bases = [folder()]
    if _private is not None and _private_pid == os.getpid() and _private not in bases:
        bases.append(_private)
    return bases


def _is_ours(name: str) -> bool:
    return name.startswith("tmp-") or (len(name) == 2 and all(c in "0123456789abcdef" for c in name))


def _path(base: Path, key: str, suffix: str) -> Path:
    return base / key[:2] / f"{key}{suffix}"


def _write(base: Path, key: str, suffix: str, content: bytes) -> Path:
    path = _path(base, key, suffix)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    temporary = path.with_name(f".{key[:16]}-{os.getpid()}-{threading.get_ident()}-{next(_counter)}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.write(_trailer(content))
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    logs.log("cache", lambda: f"store {path}")
    return path


def _trailer(content: bytes) -> bytes:
    return _MAGIC + b"%016x " % len(content) + hashlib.sha256(content).hexdigest().encode() + b"\n"


def _checked(path: Path) -> bytes | None:
    """The content of an entry, or None; a damaged entry is removed."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    content = data[:-_TRAILER_BYTES]
    if len(data) >= _TRAILER_BYTES and data[-_TRAILER_BYTES:] == _trailer(content):
        return content
    logs.log("cache", lambda: f"damaged {path.name}")
    drop(path)
    return None


def warn_once(text: str) -> None:
    """Tell the user on stderr, once in a process."""
    logs.log("cache", text)
    if text not in _warned:
        _warned.add(text)
        print(f"jitpy: {text}", file=sys.stderr, flush=True)
