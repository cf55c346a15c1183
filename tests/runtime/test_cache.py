"""The disk cache, the compiler and the native build: damage, missing things, and many processes."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from jitpy import config
from jitpy.runtime import cache, compiler, native_build

SOURCE = 'extern "C" int answer() {{ return {}; }}'
PACKAGE = Path(cache.__file__).resolve().parents[1]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with config.patch(cache_dir=str(tmp_path / "cache")):
        yield tmp_path / "cache"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The compiler runs from here on."""
    runs: list[tuple[str, ...]] = []
    execute = compiler._execute

    def counting(words, text, timeout=compiler.TIMEOUT_SECONDS):
        runs.append(tuple(words))
        return execute(words, text, timeout)

    monkeypatch.setattr(compiler, "_execute", counting)
    return runs


@contextlib.contextmanager
def _compiler(path: Path | str) -> Iterator[None]:
    with config.patch(cxx=str(path)):
        yield


def _script(path: Path, body: str) -> Path:
    path.write_text("#!/bin/sh\n" + textwrap.dedent(body))
    path.chmod(0o755)
    return path


def _damage(path: Path, data: bytes) -> None:
    """Put a damaged file in the place of one that may be loaded (writing into that one would change the process)."""
    path.unlink()
    path.write_bytes(data)


def _run(program: str, environment: dict[str, str], **options) -> subprocess.Popen[str]:
    """A Python process with jitpy's runtime package, but without jitpy's own imports."""
    start = f"""
    import sys, types
    package = types.ModuleType("jitpy")
    package.__path__ = [{str(PACKAGE)!r}]
    sys.modules["jitpy"] = package
    from jitpy.runtime import cache, compiler, native_build
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(start) + textwrap.dedent(program)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def _finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out, err


# ---- entries ----


def test_entries_are_found_again(folder: Path) -> None:
    key = cache.key_of("a", b"b")
    assert cache.lookup(key, ".bin") is None and cache.read(key, ".bin") is None
    for content in (b"", b"some bytes", os.urandom(100_000)):
        path = cache.store(key, ".bin", content)
        assert cache.lookup(key, ".bin") == path and cache.read(key, ".bin") == content
    assert cache.read(key, ".other") is None
    cache.clear()
    assert cache.read(key, ".bin") is None


def test_keys_depend_on_each_part_and_its_end() -> None:
    keys = {cache.key_of(*parts) for parts in (("ab",), ("a", "b"), ("b", "a"), ("ab", ""), ("", "ab"), ())}
    assert len(keys) == 6
    assert cache.key_of("ä") == cache.key_of("ä".encode())


def test_the_folder_is_private(folder: Path) -> None:
    path = cache.store(cache.key_of("x"), ".bin", b"x")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700 and stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_open_folder_is_closed(folder: Path) -> None:
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    assert cache.folder() == folder and stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_of_another_user_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    key = cache.key_of("refused")
    path = cache.store(key, ".bin", b"content")
    assert folder not in path.parents and cache.read(key, ".bin") == b"content"
    assert list(folder.iterdir()) == []
    assert "belongs to another user" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "append", "head"])
def test_damaged_entries_are_made_again(folder: Path, damage: str) -> None:
    key = cache.key_of("damaged")
    path = cache.store(key, ".bin", bytes(range(256)) * 10)
    data = path.read_bytes()
    changed = {
        "truncate": data[:-100],
        "flip": data[:50] + bytes([data[50] ^ 1]) + data[51:],
        "empty": b"",
        "append": data + b"x",
        "head": data[1:],
    }[damage]
    path.write_bytes(changed)
    assert cache.lookup(key, ".bin") is None and not path.exists()
    cache.store(key, ".bin", b"again")
    assert cache.read(key, ".bin") == b"again"


def test_a_full_folder_is_done_without(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = cache.store(cache.key_of("before"), ".bin", b"before")
    real = os.open

    def full(path, *arguments, **options):
        if str(path).startswith(str(folder)) and arguments[0] & os.O_CREAT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", full)
    path = cache.store(cache.key_of("after"), ".bin", b"after")
    assert folder not in path.parents
    assert cache.read(cache.key_of("after"), ".bin") == b"after"
    assert cache.read(cache.key_of("before"), ".bin") == b"before" and kept.exists()
    assert "No space left" in capsys.readouterr().err


def test_a_file_size_limit_leaves_no_pieces(folder: Path) -> None:
    """A write that stops half-way, for real: the process may not write files of more than 20 KB."""
    out, err = _finish(
        _run(
            """
            import resource, signal
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
            try:
                cache.store(cache.key_of("big"), ".bin", bytes(100_000))
            except OSError as error:
                print(error.strerror)
            cache.store(cache.key_of("small"), ".bin", bytes(100))
            """,
            {"JITPY_CACHE_DIR": str(folder)},
        )
    )
    assert "large" in out and "cannot write to the cache folder" in err
    assert [path.suffix for path in folder.rglob("*") if path.is_file()] == [".bin"]


def test_a_read_only_folder_is_read_and_not_written(tmp_path: Path) -> None:
    """As the folder's owner, and not as root, whom no mode stops."""
    with tempfile.TemporaryDirectory() as parent:
        os.chmod(parent, 0o755)
        folder = Path(parent) / "cache"
        with config.patch(cache_dir=str(folder)):
            cache.store(cache.key_of("before"), ".bin", b"before")
            compiler._find.cache_clear()
            compiler.require_compiler()
        if os.geteuid() == 0:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, 65534, 65534)
        folder.chmod(0o500)
        for path in folder.iterdir():
            path.chmod(0o500)
        out, err = _finish(
            _run(
                f"""
                import os
                if os.geteuid() == 0:
                    os.setuid(65534)
                library = compiler.load_text_cached({SOURCE.format(5)!r}, ("-O1",))
                print(library.answer(), cache.folder(), cache._private_folder())
                print(cache.read(cache.key_of("before"), ".bin"))
                """,
                {"JITPY_CACHE_DIR": str(folder), "TMPDIR": "/tmp"},
            )
        )
        first, second = out.splitlines()
        answer, used, private = first.split()
        assert (answer, used, second) == ("5", str(folder), "b'before'")
        assert list(folder.rglob("*.so")) == [] and "cannot write to the cache folder" in err
        assert not Path(private).exists(), "the process's own folder goes with it"


def test_a_path_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for wanted in (tmp_path / "file", tmp_path / "file" / "below"):
        with config.patch(cache_dir=str(wanted)):
            assert compiler.load_text_cached(SOURCE.format(6), ("-O1",)).answer() == 6
    assert "cannot use the cache folder" in capsys.readouterr().err


def test_without_disk_cache_nothing_is_written(folder: Path) -> None:
    with config.patch(disk_cache=False):
        assert compiler.load_text_cached(SOURCE.format(7), ("-O1",)).answer() == 7
    assert not folder.exists()


def test_stale_build_folders_are_removed(folder: Path) -> None:
    folder.mkdir()
    for name in ("tmp-old", "tmp-new", "mine"):
        (folder / name).mkdir()
    os.utime(folder / "tmp-old", (0, 0))
    cache.folder()
    assert sorted(path.name for path in folder.iterdir()) == ["mine", "tmp-new"]
    cache.clear()
    assert sorted(path.name for path in folder.iterdir()) == ["mine"]


def test_locks_end_with_their_process(folder: Path) -> None:
    program = """
    import os
    with cache.lock("test", 5.0) as held:
        print(held, flush=True)
        sys.stdin.readline()
        os._exit(0)
    """
    other = _run(program, {"JITPY_CACHE_DIR": str(folder)}, stdin=subprocess.PIPE)
    assert other.stdout is not None and other.stdout.readline() == "True\n"
    with cache.lock("test", 0.1) as held:
        assert not held
    other.communicate("\n", timeout=60)
    with cache.lock("test", 5.0) as held:
        assert held


# ---- the compiler ----


def test_a_second_process_runs_no_compiler(folder: Path, counted: list[tuple[str, ...]]) -> None:
    text = SOURCE.format(8)
    compiler._find.cache_clear()
    first = compiler.compile_text_cached(text, ("-O1",))
    runs = len(counted)
    assert runs >= 1 and compiler.compile_text_cached(text, ("-O1",)) == first and len(counted) == runs
    compiler._find.cache_clear()  # as in a new process
    assert compiler.compile_text_cached(text, ("-O1",)) == first and len(counted) == runs
    assert compiler.compile_text_cached(text, ("-O2",)) != first and len(counted) == runs + 1
    native = compiler.text_key(text, ("-O1", "-march=native"), compiler.require_compiler())
    assert native != compiler.text_key(text, ("-O1",), compiler.require_compiler())


def test_damaged_and_unloadable_libraries_are_built_again(folder: Path, counted: list[tuple[str, ...]]) -> None:
    path = compiler.compile_text_cached(SOURCE.format(9), ("-O1",))
    _damage(path, path.read_bytes()[:2000])
    runs = len(counted)
    assert compiler.load_text_cached(SOURCE.format(9), ("-O1",)).answer() == 9
    assert len(counted) == runs + 1
    # Whole, but no library.
    key = compiler.text_key(SOURCE.format(10), ("-O1",), compiler.require_compiler())
    cache.store(key, ".so", b"not a library")
    assert compiler.load_text_cached(SOURCE.format(10), ("-O1",)).answer() == 10
    assert len(counted) == runs + 2


def test_a_failing_compiler_is_named_with_its_last_lines(folder: Path) -> None:
    with pytest.raises(compiler.CompilerError) as caught:
        compiler.compile_text_cached("int broken( {", ("-O1",))
    assert "exit status 1" in str(caught.value) and "-shared" in caught.value.command
    assert "error:" in str(caught.value)
    assert list(folder.rglob("*.so")) == [] and list(folder.glob("tmp-*")) == []


def test_a_killed_compiler(folder: Path, tmp_path: Path) -> None:
    script = _script(
        tmp_path / "killed++",
        """
        [ "$1" = --version ] && { echo "killed++ 1.0"; exit 0; }
        for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do echo "line $i."; done
        kill -9 $$
        """,
    )
    with _compiler(script):
        assert compiler.require_compiler().version == "killed++ 1.0"
        with pytest.raises(compiler.CompilerError, match="killed by SIGKILL") as caught:
            compiler.compile_text_cached(SOURCE.format(1), ())
    assert "killed++" in str(caught.value) and "line 20." in str(caught.value) and "line 5." not in str(caught.value)


def test_a_compiler_that_hangs(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = _script(tmp_path / "slow++", 'echo "working"; [ "$1" = --version ] || exec sleep 60')
    execute = compiler._execute
    monkeypatch.setattr(compiler, "_execute", lambda words, text, timeout=1.0: execute(words, text, min(timeout, 1.0)))
    with _compiler(script), pytest.raises(compiler.CompilerError, match="did not end within 1 s") as caught:
        compiler.compile_text_cached(SOURCE.format(1), ())
    assert "working" in str(caught.value)


def test_a_compiler_that_makes_nothing(folder: Path, tmp_path: Path) -> None:
    script = _script(tmp_path / "lazy++", 'echo "lazy"')
    with _compiler(script), pytest.raises(compiler.CompilerError, match="cannot keep"):
        compiler.compile_text_cached(SOURCE.format(1), ())


def test_a_missing_compiler(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with _compiler("no-such-compiler"):
        assert compiler.find_compiler() is None
        with pytest.raises(compiler.CompilerError, match="no-such-compiler"):
            compiler.compile_text_cached(SOURCE.format(1), ())
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compiler.find_compiler() is None
    with pytest.raises(compiler.CompilerError, match="looked for g\\+\\+"):
        compiler.compile_text_cached(SOURCE.format(1), ())


def test_the_named_compiler_is_used(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configured = _script(tmp_path / "configured++", 'echo "configured"')
    environment = _script(tmp_path / "environment++", 'echo "environment $*"')
    monkeypatch.setenv("CXX", f"{environment} -m64")
    found = compiler.find_compiler()
    assert found is not None and found.version == "environment -m64 --version"
    with _compiler(configured):
        found = compiler.find_compiler()
        assert found is not None and found.version == "configured"


def test_many_processes_compile_the_same(folder: Path) -> None:
    program = f"""
    for i in range(3):
        library = compiler.load_text_cached({SOURCE!r}.format(i), ("-O1",))
        assert library.answer() == i
    for i in range(200):
        cache.store(cache.key_of("shared"), ".bin", bytes([i % 7]) * (1000 * (1 + i % 7)))
        content = cache.read(cache.key_of("shared"), ".bin")
        assert content is None or len(content) == 1000 * (1 + content[0]) and len(set(content)) == 1
        assert content is not None
    """
    processes = [_run(program, {"JITPY_CACHE_DIR": str(folder)}) for _ in range(6)]
    for process in processes:
        _finish(process)
    names = sorted(path.name for path in folder.rglob("*") if path.is_file())
    assert len(names) == 5 and not any(name.startswith(".") for name in names), names


# ---- native modules ----


@pytest.fixture
def small_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of one small module of two files and a header, in a folder of its own."""
    sources = tmp_path / "native"
    sources.mkdir()
    (sources / "value.h").write_text("#define VALUE 1\n")
    (sources / "one.c").write_text(
        '#include "value.h"\nint other(void);\nint value(void) { return VALUE + other(); }\n'
    )
    (sources / "two.c").write_text(
        "#include <Python.h>\nint value(void);\nint other(void) { return 10; }\n"
        "static PyObject *get(PyObject *m, PyObject *a) { return PyLong_FromLong(value()); }\n"
        'static PyMethodDef methods[] = {{"get", get, METH_NOARGS, 0}, {0}};\n'
        'static struct PyModuleDef d = {PyModuleDef_HEAD_INIT, "_jitpy_small", 0, -1, methods};\n'
        "PyMODINIT_FUNC PyInit__jitpy_small(void) { return PyModule_Create(&d); }\n"
    )
    table = native_build.NativeModule("small module", "_jitpy_small", ("*.c",), "c", ("-O1",), torch=False)
    monkeypatch.setattr(native_build, "NATIVE_FOLDER", sources)
    monkeypatch.setitem(native_build.MODULES, "small", table)
    monkeypatch.setattr(native_build, "_loaded", {})
    monkeypatch.setattr(native_build, "_failed", {})
    return sources


@pytest.fixture
def native_folder(tmp_path: Path) -> Iterator[Path]:
    with config.patch(native_dir=str(tmp_path / "modules")):
        yield tmp_path / "modules"


def _built_files(counted: list[tuple[str, ...]]) -> list[str]:
    names = [Path(word).name for words in counted for word in words if word.endswith(".c") or word == "-shared"]
    counted.clear()
    return sorted(names)


def test_only_what_changed_is_compiled(
    small_module: Path,
    native_folder: Path,
    folder: Path,
    counted: list[tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert not native_build.is_built("small")
    assert native_build.load_native("small").get() == 11
    assert native_build.load_native("small").get() == 11 and native_build.is_built("small")
    assert "jitpy: building small module (once): 2 files\n" in capsys.readouterr().err
    assert _built_files(counted) == ["-shared", "one.c", "two.c"]
    assert not folder.exists() and native_folder.is_dir()

    monkeypatch.setattr(native_build, "_loaded", {})
    native_build.load_native("small")
    assert _built_files(counted) == [] and capsys.readouterr().err == ""

    (small_module / "value.h").write_text("#define VALUE 2\n")
    monkeypatch.setattr(native_build, "_loaded", {})
    assert not native_build.is_built("small")
    assert native_build.load_native("small").get() == 12
    assert _built_files(counted) == ["-shared", "one.c"]

    for path in native_folder.rglob("*.so"):
        _damage(path, path.read_bytes()[:-1])
    monkeypatch.setattr(native_build, "_loaded", {})
    assert native_build.load_native("small").get() == 12
    assert _built_files(counted) == ["-shared"]


def test_reasons_why_there_is_no_native_module(
    small_module: Path, native_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with config.patch(native=False), pytest.raises(native_build.NativeUnavailable, match="turned off"):
        native_build.load_native("small")
    with pytest.raises(ValueError, match="hook, iterators, runtime, small"):
        native_build.load_native("other")
    with _compiler("no-such-compiler"), pytest.raises(native_build.NativeUnavailable, match="no C\\+\\+ compiler"):
        native_build.load_native("small")
    with pytest.raises(native_build.NativeUnavailable, match="no C\\+\\+ compiler"):
        native_build.load_native("small")  # not tried again in this process
    native_build._failed.clear()
    (small_module / "one.c").write_text("broken")
    with pytest.raises(native_build.NativeUnavailable, match="one.c"):
        native_build.load_native("small")
    native_build._failed.clear()
    (small_module / "one.c").write_text("int value(void) { extern int missing(void); return missing(); }")
    with pytest.raises(native_build.NativeUnavailable, match="does not import.*missing"):
        native_build.load_native("small")
    native_build._failed.clear()
    monkeypatch.setattr(native_build.sysconfig, "get_path", lambda _name: str(tmp_path / "no-headers"))
    with pytest.raises(native_build.NativeUnavailable, match="headers are not installed"):
        native_build.load_native("small")


def test_an_unknown_python_is_refused(native_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_build, "_loaded", {})
    monkeypatch.setattr(native_build, "_failed", {})
    monkeypatch.setattr(native_build.sys, "version_info", (3, 99, 0))
    with pytest.raises(native_build.NativeUnavailable, match="knows CPython 3.11, 3.12, 3.13"):
        native_build.load_native("hook")


def test_processes_that_start_together_build_once(native_folder: Path) -> None:
    program = """
    module = native_build.load_native("hook")
    print(module.is_active())
    """
    processes = [_run(program, {"JITPY_NATIVE_DIR": str(native_folder)}) for _ in range(4)]
    results = [_finish(process) for process in processes]
    assert [out for out, _ in results] == ["False\n"] * 4
    assert sum("building frame hook" in err for _, err in results) == 1
