"""``amp_migrate.run``: the program sees what it would see without us."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from conftest import PROGRAMS, ROOT, clean_environment

from amp_migrate.apex import _native

has_torchrun = pytest.mark.skipif(
    importlib.util.find_spec("torch.distributed.run") is None, reason="this torch has no torchrun (1.10)"
)

can_record = pytest.mark.skipif(
    not hasattr(torch.optim.Optimizer, "register_step_pre_hook"), reason="recording needs torch 2.0"
)


def write(folder: Path, text: str, name: str = "program.py") -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return str(path)


@pytest.mark.fast
def test_a_legacy_program_trains(python) -> None:
    done = python("-m", "amp_migrate.run", str(PROGRAMS / "plain_loop.py"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("final ")
    if _native.autocast_works("cpu", torch.float16):
        assert done.stderr == ""
    else:
        assert "float32" in done.stderr  # the one notice


SHOW = """
    import json, os, sys
    import __main__
    spec = __main__.__spec__
    print(json.dumps({
        "argv": sys.argv, "path0": sys.path[0], "file": __file__, "name": __name__, "same": vars(__main__) is globals(),
        "spec": spec and spec.name, "package": __package__, "doc": __doc__, "cwd": os.getcwd(),
    }))
"""


@pytest.mark.parametrize("arguments", [[], ["--x", "1", "--help", "-m", "--record"]])
@pytest.mark.parametrize("relative", [True, False])
def test_argv_path_file_and_main_are_as_without_us(
    python, tmp_path: Path, arguments: list[str], relative: bool
) -> None:
    program = write(tmp_path, SHOW, "sub/program.py")
    shown = os.path.join("sub", "program.py") if relative else program
    alone = json.loads(python(shown, *arguments).stdout)
    run = python("-m", "amp_migrate.run", shown, *arguments)
    assert json.loads(run.stdout) == alone, run.stderr


def test_a_module_runs_as_with_python_m(python, tmp_path: Path) -> None:
    write(tmp_path, "", "pkg/__init__.py")
    write(tmp_path, SHOW, "pkg/tool.py")
    write(tmp_path, SHOW, "pkg/__main__.py")
    for name in ("pkg.tool", "pkg"):
        alone = json.loads(python("-m", name, "-x").stdout)
        run = python("-m", "amp_migrate.run", "-m", name, "-x")
        assert json.loads(run.stdout) == alone, run.stderr


def test_a_folder_with_a_main_runs(python, tmp_path: Path) -> None:
    write(tmp_path, "import helper; print(helper.VALUE, __name__)", "app/__main__.py")
    write(tmp_path, "VALUE = 7", "app/helper.py")
    assert python("-m", "amp_migrate.run", "app").stdout == "7 __main__\n"


@pytest.mark.parametrize(
    "text, code",
    [
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('bad luck')", 1),
        ("raise ValueError('x')", 1),
        ("def f(:\n", 1),
        ("import os; os._exit(9)", 9),
        ("", 0),
    ],
)
def test_exit_code_and_error_output_are_as_without_us(python, tmp_path: Path, text: str, code: int) -> None:
    program = write(tmp_path, text)
    alone, run = python(program), python("-m", "amp_migrate.run", program)
    assert run.returncode == alone.returncode == code
    assert run.stderr == alone.stderr
    assert run.stdout == alone.stdout


def test_a_traceback_through_functions_and_causes_is_as_without_us(python, tmp_path: Path) -> None:
    program = write(
        tmp_path,
        """
        def inner():
            raise KeyError("k")
        def outer():
            try:
                inner()
            except KeyError as error:
                raise RuntimeError("wrapped") from error
        outer()
        """,
    )
    assert python("-m", "amp_migrate.run", program).stderr == python(program).stderr


def test_the_programs_own_excepthook_and_exit_handlers_run(python, tmp_path: Path) -> None:
    program = write(
        tmp_path,
        """
        import atexit, sys
        atexit.register(print, "at exit")
        sys.excepthook = lambda kind, error, trace: print("hook", kind.__name__, trace.tb_frame.f_code.co_name)
        raise ValueError
        """,
    )
    alone, run = python(program), python("-m", "amp_migrate.run", program)
    assert run.stdout == alone.stdout == "hook ValueError <module>\nat exit\n"


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
def test_an_interrupt_ends_it_as_without_us(tmp_path: Path) -> None:
    program = write(tmp_path, "import time; print('ready', flush=True); time.sleep(60)")
    codes = []
    for before in ([], ["-m", "amp_migrate.run"]):
        process = subprocess.Popen(
            [sys.executable, *before, program],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=clean_environment(),
            # a job in the background ignores interrupts, and its children would inherit that
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        codes.append(process.wait(timeout=60))
    assert codes[0] == codes[1] == -signal.SIGINT


def test_classes_of_the_program_can_be_pickled(python, tmp_path: Path) -> None:
    program = write(
        tmp_path,
        """
        import pickle
        class Thing: pass
        print(type(pickle.loads(pickle.dumps(Thing()))) is Thing, Thing.__module__)
        """,
    )
    assert python("-m", "amp_migrate.run", program).stdout == "True __main__\n"


def test_spawned_workers_of_the_program_find_apex(python, tmp_path: Path) -> None:
    program = write(
        tmp_path,
        """
        import multiprocessing
        from apex import amp

        def work(x):
            return amp.__name__, x * 2

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(work, [21])[0])
        """,
    )
    done = python("-m", "amp_migrate.run", program)
    assert done.stdout == "('amp_migrate.apex.amp', 42)\n", done.stderr


@pytest.mark.parametrize("arguments", [["no_such.py"], ["-m", "no_such_module"], ["-m", "no.such"]])
def test_a_program_that_is_not_there_is_exit_code_2_and_a_sentence(python, arguments: list[str]) -> None:
    done = python("-m", "amp_migrate.run", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("amp-migrate run: ") and "Traceback" not in done.stderr


def test_device_type_is_passed_on_to_workers(python, tmp_path: Path) -> None:
    program = write(tmp_path, "import os; print(os.environ['AMP_MIGRATE_DEVICE_TYPE'])")
    assert python("-m", "amp_migrate.run", "--device-type", "cpu", program).stdout == "cpu\n"


def test_amp_migrate_run_is_the_same_verb(python) -> None:
    done = python("-m", "amp_migrate", "run", str(PROGRAMS / "plain_loop.py"))
    assert done.returncode == 0 and done.stdout.splitlines()[-1].startswith("final ")


def test_without_a_verb_or_with_a_wrong_one_it_says_which_there_are(python) -> None:
    for arguments in ([], ["frobnicate"]):
        done = python("-m", "amp_migrate", *arguments)
        assert done.returncode == 2
        assert "detect" in done.stderr and "rewrite" in done.stderr


TORCHRUN_PROGRAM = """
    import os, sys, torch
    import torch.distributed as dist
    from torch import nn
    from apex import amp

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    model = nn.parallel.DistributedDataParallel(model)
    torch.manual_seed(rank + 1)
    for step in range(6):
        for part in range(PARTS):
            x, y = torch.randn(4, 6), torch.randn(4, 2)
            last = part == PARTS - 1
            with (model.no_sync() if NO_SYNC and not last else open(os.devnull)):
                loss = ((model(x).float() - y) ** 2).mean() / 16
                if step == 2 and rank == 1 and part == BAD:
                    loss = loss * float("inf")
                with amp.scale_loss(loss, optimizer) as scaled:
                    scaled.backward()
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.step()
        moved = not all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
        optimizer.zero_grad()
        flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        other = [torch.empty_like(flat) for _ in range(2)]
        dist.all_gather(other, flat)
        scale = torch.tensor(list(amp.state_dict()["loss_scaler0"].values()))
        scales = [torch.empty_like(scale) for _ in range(2)]
        dist.all_gather(scales, scale)
        if rank == 0:
            finite = bool(torch.isfinite(flat).all())
            row = f"\\nrow {step} {moved} {torch.equal(*other)} {torch.equal(*scales)} {int(scale[0])} {finite}\\n"
            os.write(1, row.encode())  # in one piece: the processes share a pipe
    sys.stdout.flush()
    os._exit(0)  # torch 2.13 sometimes aborts while Python shuts down after gloo, also without amp_migrate
"""


@pytest.mark.slow
@has_torchrun
@pytest.mark.parametrize(
    "parts, no_sync, bad", [(1, False, 0), (2, False, 0), (2, True, 0), (2, True, 1), (3, True, 0)]
)
def test_two_processes_skip_together_after_an_overflow_on_one(
    python, tmp_path: Path, parts: int, no_sync: bool, bad: int
) -> None:
    text = TORCHRUN_PROGRAM.replace("PARTS", str(parts)).replace("NO_SYNC", str(no_sync)).replace("BAD", str(bad))
    program = write(tmp_path, text)
    done = python(
        "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "amp_migrate.run", program,
        OMP_NUM_THREADS="1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("row ")]
    assert [line[0] for line in lines] == list("012345")
    assert [line[1] for line in lines] == ["True", "True", "False", "True", "True", "True"], done.stdout
    assert all(line[2] == line[3] == line[5] == "True" for line in lines), done.stdout
    assert [line[4] for line in lines] == ["65536"] * 2 + ["32768"] * 4
    assert done.stdout.count("Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0") == 2


@pytest.mark.slow
@has_torchrun
@can_record
def test_two_processes_write_a_record_each(python, tmp_path: Path) -> None:
    text = TORCHRUN_PROGRAM.replace("PARTS", "1").replace("NO_SYNC", "False").replace("BAD", "0")
    program = write(tmp_path, text.replace("os._exit(0)", "dist.barrier()"))
    python(
        "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2",
        "-m", "amp_migrate.run", "--record", str(tmp_path / "run.json"), program, OMP_NUM_THREADS="1",
    )  # fmt: skip
    from amp_migrate.record import Record

    first, second = (Record.read(str(tmp_path / f"run.rank{rank}.json")) for rank in (0, 1))
    assert [s.skipped for s in first.steps] == [s.skipped for s in second.steps] == [False] * 2 + [True] + [False] * 3
    assert [s.checksum for s in first.steps] == [s.checksum for s in second.steps]


@pytest.mark.skipif(can_record.args[0] is False, reason="this torch can record")
def test_recording_on_an_older_torch_is_refused_before_the_program_starts(python, tmp_path: Path) -> None:
    done = python("-m", "amp_migrate.run", "--record", str(tmp_path / "r.json"), write(tmp_path, "print('ran')"))
    assert done.returncode == 2 and done.stdout == ""
    assert "recording needs torch 2.0" in done.stderr


def test_the_root_of_a_clone_need_not_be_on_the_path_of_the_program(tmp_path: Path) -> None:
    program = write(tmp_path, "from apex import amp; import sys; print(amp.__name__, sys.path[0])")
    env = {k: v for k, v in clean_environment().items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-m", "amp_migrate.run", program], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.stdout.split() == ["amp_migrate.apex.amp", str(tmp_path)], done.stderr
