"""Which torch, which features, which ``apex``, and which backend the drop-in uses here.

Features are found by looking for them; the version is only shown. ``python -m amp_migrate.detect`` prints it all.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from dataclasses import asdict, dataclass
from typing import Any, Mapping, NamedTuple

from packaging.version import InvalidVersion, Version

from .installed_apex import ApexKind, InstalledApex, inspect_installed_apex

BACKEND_VARIABLE = "AMP_MIGRATE_BACKEND"
BACKENDS = ("native", "apex", "none")
OLDEST_TORCH = "1.6"

#: feature → where torch has it; the comment says since when
FEATURES: Mapping[str, str] = {
    "cuda_autocast": "cuda.amp.autocast",  # 1.6
    "cuda_grad_scaler": "cuda.amp.GradScaler",  # 1.6
    "autocast": "autocast",  # 1.10: any device type
    "grad_scaler": "amp.GradScaler",  # 2.3: any device type
    "autocast_query": "amp.is_autocast_available",  # 2.4
    "custom_fwd": "amp.custom_fwd",  # 2.4: any device type
    "autocast_cache_switch": "set_autocast_cache_enabled",  # 1.10
    "foreach_unscale": "_amp_foreach_non_finite_check_and_unscale_",  # 1.8
    "operator_library": "library.Library",  # 1.11
    "optimizer_step_hooks": "optim.Optimizer.register_step_pre_hook",  # 2.0
    "safe_globals": "serialization.safe_globals",  # 2.5
    "rms_norm": "nn.RMSNorm",  # 2.4
    "accelerator": "accelerator",  # 2.6
}

#: device type → where torch says whether there is one
_AVAILABILITY: Mapping[str, str] = {
    "cuda": "cuda.is_available",
    "xpu": "xpu.is_available",
    "mps": "backends.mps.is_available",
    "hpu": "hpu.is_available",
    "npu": "npu.is_available",
    "mtia": "mtia.is_available",
}


class UnsupportedTorch(RuntimeError):
    """This torch has no native AMP, and no Apex with amp is installed to stand in for it."""


class Backend(NamedTuple):
    """What does the work of ``apex.amp``: "native", "apex" or "none", and why, in one sentence."""

    name: str
    reason: str


@dataclass(frozen=True)
class DeviceSupport:
    """Mixed precision on one device type.

    Args:
        device_type: as in ``torch.device(...).type``.
        autocast: the dtype that the drop-in casts to there ("float16"), or "off".
        scaler: "torch" (its GradScaler), "stand-in" (ours, same interface), or "off".
        reason: one sentence.
    """

    device_type: str
    autocast: str
    scaler: str
    reason: str


@dataclass(frozen=True)
class Environment:
    """What was found here.

    Args:
        python: this Python's version.
        torch: torch's version; None without torch, or if its version can't be parsed.
        torch_text: the version as torch states it; None without torch.
        features: name → whether torch has it; the names are the keys of ``FEATURES``.
        devices: the device types that are there.
        apex: the installed ``apex``.
    """

    python: Version
    torch: Version | None
    torch_text: str | None
    features: Mapping[str, bool]
    devices: tuple[DeviceSupport, ...]
    apex: InstalledApex

    @property
    def has_native_amp(self) -> bool:
        """Whether torch has autocast and a GradScaler."""
        autocast = self.features.get("cuda_autocast", False) or self.features.get("autocast", False)
        scaler = self.features.get("cuda_grad_scaler", False) or self.features.get("grad_scaler", False)
        return autocast and scaler


def parse_version(text: str) -> Version | None:
    """Return the version, or None for text that isn't one (a build from source may state anything)."""
    try:
        return Version(text)
    except InvalidVersion:
        return None


def detect_environment() -> Environment:
    """Look at Python, torch and the installed apex. Imports torch if it is installed; never imports apex."""
    torch = _import_torch()
    text = str(getattr(torch, "__version__", "unknown")) if torch is not None else None
    return Environment(
        python=Version(platform.python_version().rstrip("+")),
        torch=parse_version(text) if text is not None else None,
        torch_text=text,
        features={name: torch is not None and _has(torch, path) for name, path in FEATURES.items()},
        devices=tuple(_devices(torch)) if torch is not None else (),
        apex=inspect_installed_apex(),
    )


def _import_torch() -> Any:
    try:
        import torch
    except ImportError:
        return None
    return torch


def _has(root: Any, path: str) -> bool:
    return _get(root, path) is not None


def _get(root: Any, path: str) -> Any:
    for name in path.split("."):
        root = getattr(root, name, None)
    return root


def _devices(torch: Any) -> list[DeviceSupport]:
    present = [device for device, path in _AVAILABILITY.items() if _says_yes(_get(torch, path))]
    if not _has(torch, "cuda.amp.autocast") and not _has(torch, "autocast"):
        return [DeviceSupport(d, "off", "off", "This torch has no native AMP.") for d in (*present, "cpu")]
    return [_support(torch, device) for device in (*present, "cpu")]


def _says_yes(is_available: Any) -> bool:
    try:
        return bool(is_available and is_available())
    except Exception:  # a half-installed backend must not stop the others from being shown
        return False


_CASTS_REASON = {
    True: "Autocast to float16 works",
    False: "This torch can't autocast to float16 here, so programs run in float32",
}
_SCALER_REASON = {
    "torch": "torch's GradScaler scales losses.",
    "stand-in": "torch's GradScaler can't run here, so a stand-in with its interface scales losses.",
}


def _support(torch: Any, device_type: str) -> DeviceSupport:
    from .apex import _native

    casts = _native.autocast_works(device_type, torch.float16)
    scaler = "torch" if _native.grad_scaler_class(device_type) is not None else "stand-in"
    reason = _CASTS_REASON[casts] + "; " + _SCALER_REASON[scaler]
    return DeviceSupport(device_type, "float16" if casts else "off", scaler, reason)


def choose_backend(environment: Environment | None = None) -> Backend:
    """Choose what does the work of ``apex.amp``; ``AMP_MIGRATE_BACKEND`` overrides.

    Raises:
        ValueError: if the variable holds something else than native, apex or none.
    """
    asked = os.environ.get(BACKEND_VARIABLE)
    if asked:
        if asked not in BACKENDS:
            raise ValueError(f"{BACKEND_VARIABLE}={asked!r}: it must be one of {', '.join(BACKENDS)}.")
        return Backend(asked, f"{BACKEND_VARIABLE}={asked} is set.")
    here = environment if environment is not None else detect_environment()
    if here.torch_text is None:
        return Backend("none", "torch isn't installed.")
    if here.has_native_amp:
        return Backend("native", f"torch {here.torch_text} has native autocast and GradScaler.")
    if here.apex.kind in (ApexKind.WITH_AMP, ApexKind.PYTHON_ONLY) and here.apex.has_amp:
        return Backend("apex", f"torch {here.torch_text} has no native AMP, but the installed Apex has amp.")
    return Backend("none", f"torch {here.torch_text} has no native AMP, and no Apex with amp is installed.")


def require_backend(environment: Environment | None = None) -> Backend:
    """As :func:`choose_backend`, but "none" is an error.

    Raises:
        UnsupportedTorch: naming the version found and the version needed.
    """
    backend = choose_backend(environment)
    if backend.name == "none":
        raise UnsupportedTorch(
            f"amp_migrate can't run here: {backend.reason} Native AMP needs torch {OLDEST_TORCH} or newer: "
            f"pip install 'torch>={OLDEST_TORCH}'. On an older torch, an NVIDIA Apex with apex.amp works."
        )
    return backend


def as_json(environment: Environment, backend: Backend) -> dict[str, Any]:
    """What ``--json`` prints."""
    apex = {**asdict(environment.apex), "kind": environment.apex.kind.value}
    return {
        "python": str(environment.python),
        "torch": environment.torch_text,
        "backend": backend.name,
        "reason": backend.reason,
        "devices": [asdict(device) for device in environment.devices],
        "apex": apex,
        "features": dict(environment.features),
    }


def _rows(environment: Environment, backend: Backend) -> list[tuple[str, str]]:
    apex = environment.apex
    rows = [
        ("Python", str(environment.python)),
        ("torch", environment.torch_text or "not installed"),
        ("backend", f"{backend.name}: {backend.reason}"),
        ("apex", f"{apex.kind.value}. {apex.note}"),
    ]
    if apex.location:
        rows.append(("apex found at", apex.location))
    if apex.extensions:
        rows.append(("apex extensions", ", ".join(apex.extensions)))
    rows += [
        (f"on {d.device_type}", f"autocast {d.autocast}, scaler {d.scaler}. {d.reason}") for d in environment.devices
    ]
    rows.append(("torch has", ", ".join(name for name, there in environment.features.items() if there) or "-"))
    rows.append(("torch lacks", ", ".join(name for name, there in environment.features.items() if not there) or "-"))
    return rows


def _print_table(rows: list[tuple[str, str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    Console(markup=False, highlight=False).print(table)


def main(argv: list[str] | None = None) -> int:
    """The ``detect`` verb. Exit code 0, or 2 if no backend can work here."""
    parser = argparse.ArgumentParser(
        prog="amp-migrate detect", description="Show torch, its features, the installed apex, and the backend used."
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    args = parser.parse_args(argv)
    environment = detect_environment()
    try:
        backend = choose_backend(environment)
    except ValueError as error:
        print(f"amp-migrate detect: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(as_json(environment, backend), indent=2))
    else:
        _print_table(_rows(environment, backend))
    return 2 if backend.name == "none" else 0


if __name__ == "__main__":
    sys.exit(main())
