"""The detector: what is installed, found without importing it, and which backend follows."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from packaging.version import Version

from amp_migrate import detect
from amp_migrate.detect import (
    Backend,
    Environment,
    UnsupportedTorch,
    choose_backend,
    detect_environment,
    parse_version,
    require_backend,
)
from amp_migrate.installed_apex import ApexKind, InstalledApex, inspect_installed_apex

NATIVE = {"cuda_autocast": True, "cuda_grad_scaler": True}
NO_AMP: dict[str, bool] = {}


def environment(torch_text: str | None = "2.1.0", features: dict[str, bool] = NATIVE, **apex: object) -> Environment:
    version = parse_version(torch_text) if torch_text else None
    found = InstalledApex(**{"kind": ApexKind.NONE, **apex})  # type: ignore[arg-type]
    return Environment(Version("3.8"), version, torch_text, features, (), found)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An import path that holds nothing but this folder and the standard library."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder), *(p for p in sys.path if p and "apex" not in p)])
    return folder


def write(folder: Path, **files: str) -> None:
    """Write modules; `a__b` is a/b.py, and `a____init__` is a/__init__.py."""
    for name, text in files.items():
        below = name.replace("____init__", "/INIT").replace("__", "/").replace("INIT", "__init__")
        path = folder / f"{below}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.fixture(autouse=True)
def no_override(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AMP_MIGRATE_BACKEND", raising=False)


@pytest.mark.parametrize("text", ["1.6.0a0+6e1aa6c", "2.7.1+cu128", "1.10.0", "2.15.0.dev20260101"])
def test_odd_versions_are_parsed(text: str) -> None:
    assert parse_version(text) is not None


def test_1_10_is_newer_than_1_8() -> None:
    newer, older = parse_version("1.10.0"), parse_version("1.8.1")
    assert newer is not None and older is not None and newer > older


def test_an_unparsable_version_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "git-abc")
    here = detect_environment()
    assert here.torch is None and here.torch_text == "git-abc"
    assert choose_backend(here).name == "native"


def test_the_environment_here_is_native_and_names_the_cpu() -> None:
    here = detect_environment()
    assert here.has_native_amp
    assert [d.device_type for d in here.devices][-1] == "cpu"
    assert choose_backend(here).name == "native"


@pytest.mark.parametrize(
    "here, name",
    [
        (environment(None, NO_AMP), "none"),
        (environment("1.5.1", NO_AMP), "none"),
        (environment("1.5.1", NO_AMP, kind=ApexKind.WITH_AMP, has_amp=True), "apex"),
        (environment("1.5.1", NO_AMP, kind=ApexKind.PYTHON_ONLY, has_amp=True), "apex"),
        (environment("1.5.1", NO_AMP, kind=ApexKind.WITHOUT_AMP), "none"),
        (environment("1.5.1", NO_AMP, kind=ApexKind.UNRELATED), "none"),
        (environment("1.6.0", NATIVE), "native"),
        (environment("2.1.0", NATIVE, kind=ApexKind.WITH_AMP, has_amp=True), "native"),
    ],
)
def test_the_backend_follows_from_torch_and_apex(here: Environment, name: str) -> None:
    backend = choose_backend(here)
    assert backend.name == name
    assert backend.reason.endswith(".")


@pytest.mark.parametrize("name", ["native", "apex", "none"])
def test_the_variable_overrides(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("AMP_MIGRATE_BACKEND", name)
    assert choose_backend(environment()) == Backend(name, f"AMP_MIGRATE_BACKEND={name} is set.")


def test_a_wrong_override_says_what_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMP_MIGRATE_BACKEND", "nativ")
    with pytest.raises(ValueError, match="native, apex, none"):
        choose_backend(environment())


def test_too_old_a_torch_is_refused_naming_both_versions() -> None:
    with pytest.raises(UnsupportedTorch, match=r"1\.5\.1.*1\.6"):
        require_backend(environment("1.5.1", NO_AMP))


def test_without_grad_scaler_for_any_device_the_cuda_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from amp_migrate.apex import _native

    if hasattr(torch, "amp"):
        monkeypatch.delattr(torch.amp, "GradScaler", raising=False)
    assert _native.grad_scaler_class("cuda") is torch.cuda.amp.GradScaler
    assert _native.grad_scaler_class("cpu") is None
    assert detect_environment().devices[-1].scaler == "stand-in"


@pytest.mark.filterwarnings("error")
def test_detecting_gives_no_warnings() -> None:
    detect_environment()


has_mps_probe = pytest.mark.skipif(not hasattr(torch.backends, "mps"), reason="this torch knows no MPS (1.12)")


@has_mps_probe
def test_another_device_is_named_with_its_casts_and_scaler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    devices = {d.device_type: d for d in detect_environment().devices}
    assert devices["mps"].scaler in ("torch", "stand-in")
    assert devices["mps"].reason.endswith(".")


@has_mps_probe
def test_a_backend_whose_probe_raises_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> bool:
        raise RuntimeError("driver")

    monkeypatch.setattr(torch.backends.mps, "is_available", broken)
    assert "mps" not in [d.device_type for d in detect_environment().devices]


def test_no_apex(site: Path) -> None:
    assert inspect_installed_apex().kind is ApexKind.NONE


def test_a_real_apex_with_amp(site: Path) -> None:
    write(site, apex____init__="from . import amp\n", apex__amp____init__="", apex__normalization____init__="")
    found = inspect_installed_apex()
    assert found.kind is ApexKind.WITH_AMP and found.has_amp
    assert found.submodules == ("amp", "normalization")


def test_a_real_apex_without_amp(site: Path) -> None:
    write(site, apex____init__="", apex__normalization="class FusedLayerNorm: pass\n")
    found = inspect_installed_apex()
    assert found.kind is ApexKind.WITHOUT_AMP and not found.has_amp


def test_a_python_only_build(site: Path) -> None:
    layer = "class FusedLayerNorm:\n    def __init__(self):\n        import fused_layer_norm_cuda\n"
    write(site, apex____init__="", apex__normalization____init__=layer)
    found = inspect_installed_apex()
    assert found.kind is ApexKind.PYTHON_ONLY
    assert "fused_layer_norm_cuda" in found.note


def test_a_full_build_is_not_called_python_only(site: Path) -> None:
    write(site, apex____init__="", apex__normalization____init__="import fused_layer_norm_cuda\n")
    write(site, fused_layer_norm_cuda="")
    found = inspect_installed_apex()
    assert found.kind is ApexKind.WITHOUT_AMP
    assert found.extensions == ("fused_layer_norm_cuda",)


@pytest.mark.parametrize(
    "init, amp, said",
    [
        ("from . import parallel\n", "", "parallel"),
        ("from . import amp\n", "from torch.no_such_part import string_classes\n", "torch.no_such_part"),
        ("from . import amp\n", "import no_such_module_anywhere\n", "no_such_module_anywhere"),
        ("def broken(:\n", "", "parsed"),
    ],
)
def test_an_apex_whose_import_must_fail_is_found_without_importing_it(
    site: Path, init: str, amp: str, said: str
) -> None:
    write(site, apex____init__=init, apex__amp____init__=amp)
    found = inspect_installed_apex()
    assert found.kind is ApexKind.BROKEN
    assert said in found.note


def test_guarded_imports_are_not_held_against_it(site: Path) -> None:
    write(site, apex____init__="from . import amp\ntry:\n    import nowhere\nexcept ImportError:\n    pass\n")
    write(site, apex__amp____init__="from .handle import scale_loss\n", apex__amp__handle="import numpy\n")
    assert inspect_installed_apex().kind is ApexKind.WITH_AMP


def test_the_unrelated_package(site: Path) -> None:
    write(site, apex____init__="from pyramid.session import X\nraise SystemError\n", apex__forms="")
    assert inspect_installed_apex().kind is ApexKind.UNRELATED


def test_a_folder_called_apex(site: Path) -> None:
    (site / "apex" / "examples").mkdir(parents=True)
    found = inspect_installed_apex()
    assert found.kind is ApexKind.FOLDER
    assert found.location == str(site / "apex")


def test_looking_never_imports_apex(site: Path) -> None:
    write(site, apex____init__="raise SystemError('imported')\n", apex__amp____init__="")
    inspect_installed_apex()
    assert "apex" not in sys.modules


@pytest.mark.fast
def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert detect.main(["--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["backend"] == "native"
    assert shown["torch"] == torch.__version__
    assert set(shown["features"]) == set(detect.FEATURES)


def test_the_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert detect.main([]) == 0
    text = capsys.readouterr().out
    assert "backend" in text and "native" in text and "on cpu" in text


def test_without_torch_the_command_says_so_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(detect, "_import_torch", lambda: None)
    assert detect.main([]) == 2
    assert "torch isn't installed" in capsys.readouterr().out
