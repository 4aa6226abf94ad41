"""``python -m amp_migrate.run PROGRAM ARGS…``: run a program unchanged, with ``import apex`` on native AMP.

The program sees what it would see without us: ``sys.argv``, ``sys.path[0]``, ``__main__``, ``__file__``, tracebacks and
exit codes.
"""

from __future__ import annotations

import argparse
import builtins
import importlib.util
import io
import os
import signal
import sys
import types
from importlib.machinery import ModuleSpec
from types import CodeType, TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .record import Recorder


class CannotRun(Exception):
    """The program can't be found or read; the message says why."""


def make_parser() -> argparse.ArgumentParser:
    """The command line, up to the program."""
    parser = argparse.ArgumentParser(
        prog="amp-migrate run",
        usage="amp-migrate run [--device-type T] [--record FILE] [-m] PROGRAM [ARGS...]",
        description="Run a training program that imports apex, on torch's native mixed precision, without changing it.",
    )
    parser.add_argument(
        "--device-type", metavar="T", help="cast and scale on this device type, not on that of the model's parameters"
    )
    parser.add_argument("--record", metavar="FILE", help="write what every optimizer step did to FILE (JSON)")
    parser.add_argument(
        "-m", dest="as_module", action="store_true", help="PROGRAM is a module's name, as for python -m"
    )
    parser.add_argument("program", metavar="PROGRAM", help="the script, or with -m the module")
    parser.add_argument("args", metavar="ARGS", nargs=argparse.REMAINDER, help="the program's own arguments")
    return parser


def main(argv: list[str] | None = None) -> int:
    """The ``run`` verb. Returns 2 if the program can't be started; else the program's own exit code is raised."""
    options = make_parser().parse_args(argv)
    from .detect import UnsupportedTorch
    from .finder import install

    if options.device_type:
        os.environ["AMP_MIGRATE_DEVICE_TYPE"] = options.device_type
    try:
        install()
        code, module = _load(options.program, options.as_module)
        recorder = _start_recorder(options.record)
    except (CannotRun, UnsupportedTorch, ValueError) as error:
        print(f"amp-migrate run: {error}", file=sys.stderr)
        return 2
    except SyntaxError as error:
        sys.excepthook(type(error), error.with_traceback(None), None)
        return 1
    sys.argv = [str(module.__file__) if options.as_module else options.program, *options.args]
    try:
        return _execute(code, module)
    finally:
        if recorder is not None:
            recorder.finish()


def _start_recorder(path: str | None) -> _RunningRecorder | None:
    if path is None:
        return None
    from .record import Recorder, path_for_this_process

    recorder = Recorder()
    recorder.start()
    return _RunningRecorder(recorder, path_for_this_process(path))


class _RunningRecorder:
    def __init__(self, recorder: Recorder, path: str) -> None:
        self._recorder = recorder
        self._path = path

    def finish(self) -> None:
        self._recorder.stop()
        self._recorder.record.write(self._path)


def _load(program: str, as_module: bool) -> tuple[CodeType, types.ModuleType]:
    """Compile the program and make the ``__main__`` module it will run in."""
    module = types.ModuleType("__main__")
    vars(module)["__builtins__"] = builtins
    if as_module:
        spec, code = _find_module(program)
        module.__spec__, module.__loader__, module.__package__ = spec, spec.loader, spec.parent
        module.__file__ = spec.origin or ""
        vars(module)["__cached__"] = spec.cached
        _set_first_path(os.getcwd())
        return code, module
    path = os.path.join(program, "__main__.py") if os.path.isdir(program) else program
    if sys.version_info >= (3, 9):  # since then, Python itself makes the script's path absolute
        path = os.path.abspath(path)
    module.__file__ = path
    module.__spec__ = None
    _set_first_path(program if os.path.isdir(program) else os.path.dirname(os.path.realpath(path)))
    return _compile_file(path), module


def _find_module(name: str) -> tuple[ModuleSpec, CodeType]:
    _set_first_path(os.getcwd())
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(name + ".__main__")
    except ImportError as error:
        raise CannotRun(f"no module named {name!r}: {error}") from error
    get_code = getattr(spec.loader, "get_code", None) if spec is not None else None
    code = get_code(spec.name) if get_code is not None and spec is not None else None
    if spec is None or code is None:
        raise CannotRun(f"no module named {name!r} that can be run")
    return spec, code


def _compile_file(path: str) -> CodeType:
    try:
        with io.open_code(os.path.abspath(path)) as file:
            return compile(file.read(), path, "exec", dont_inherit=True)
    except OSError as error:
        raise CannotRun(f"can't open file {path!r}: {error}") from error


def _set_first_path(folder: str) -> None:
    """Put the program's folder where Python puts it: first, in place of the one that found this module."""
    sys.path[:1] = [folder]


def _execute(code: CodeType, module: types.ModuleType) -> int:
    """Run the program as ``__main__``; return 1 after printing the traceback of an exception, as Python does."""
    sys.modules["__main__"] = module
    try:
        exec(code, vars(module))
    except SystemExit:
        raise
    except BaseException as error:
        trace = _without_our_frames(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        if isinstance(error, KeyboardInterrupt):
            _die_of_interrupt()
        return 1
    return 0


def _without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _die_of_interrupt() -> None:
    """End as an interrupted Python does: by the signal, after the exit handlers."""
    import atexit

    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main())
