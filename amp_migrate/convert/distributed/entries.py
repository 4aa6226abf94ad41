"""The entries in the data files: each a file of torch.save's by itself, opened by the inert machine."""

from __future__ import annotations

import dataclasses
import io
import tempfile
from pathlib import Path
from typing import Any

from ..errors import CannotConvert, Damaged, Unsafe
from ..opening import open_checkpoint
from ..opening.zip_file import open_zip
from ..records import FileRange, Tensor
from ..tree import short_repr


class _Window(io.RawIOBase):
    """A part of a file as a file of its own."""

    def __init__(self, part: FileRange) -> None:
        super().__init__()
        self._part = part
        self._file = open(part.path, "rb")  # noqa: SIM115 - closed with the window
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._part.length}[whence]
        self._position = max(0, start + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._part.length - self._position)
        self._file.seek(self._part.offset + self._position)
        data = self._file.read(left if size is None or size < 0 else min(size, left))
        self._position += len(data)
        return data

    def close(self) -> None:
        self._file.close()
        super().close()


def open_tensor(part: FileRange, name: str) -> Tensor:
    """Return the record of a tensor that was saved by itself in a part of a file.

    Raises:
        Damaged: it is something else, or broken.
        Unsafe: it can't be read without executing something.
    """
    window = _Window(part)
    try:
        found = open_zip(window, part.path, part.length).tree  # type: ignore[arg-type]
    except CannotConvert as error:
        raise type(error)(f"{_place(part, name)}: {error}") from error
    finally:
        window.close()
    if not isinstance(found, Tensor):
        raise Damaged(f"{_place(part, name)}: there is a {type(found).__name__} instead of a tensor")
    source = found.storage.source
    if isinstance(source, FileRange):
        source = dataclasses.replace(source, offset=source.offset + part.offset)
    return dataclasses.replace(found, storage=dataclasses.replace(found.storage, source=source))


class Objects:
    """Opens the entries that aren't tensors, from copies in a folder that exists as long as the block does."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="amp_migrate.")
        self._count = 0

    def __enter__(self) -> Objects:
        return self

    def __exit__(self, *error: object) -> None:
        self._folder.cleanup()

    def copied(self, part: FileRange) -> Path:
        """Return a copy of a part of a file as a file of its own."""
        path = Path(self._folder.name, f"{self._count}")
        self._count += 1
        with open(path, "wb") as file:
            for data in part.chunks():
                file.write(data)
        return path

    def open(self, part: FileRange, name: str) -> Any:
        """Return what an entry holds, as a tree of plain data and records.

        Raises:
            Damaged: it is broken.
            Unsafe: it can't be read without executing something. What only names foreign classes is returned.
        """
        path = self.copied(part)
        try:
            opened = open_checkpoint(path)
            if opened.discarded:
                raise Unsafe(f"the pickle uses {', '.join(opened.discarded)}, and throws the result away")
            return opened.root
        except CannotConvert as error:
            raise type(error)(f"{_place(part, name)}: {str(error).replace(f'{path}: ', '', 1)}") from error


def _place(part: FileRange, name: str) -> str:
    return f"{part.path}: {short_repr(name)} at byte {part.offset}"
