"""What a file is that is no checkpoint, told by its first bytes, and what to do with it."""

from __future__ import annotations

import json

ZIP_MAGIC = b"PK\x03\x04"
#: how many of a file's first bytes the questions here need
HEAD = 512

#: (bytes, where they are, what the file is and what to do)
_KINDS: tuple[tuple[bytes, int, str], ...] = (
    (b"\x1f\x8b", 0, "a gzip file; unpack it first (gunzip)"),
    (b"BZh", 0, "a bzip2 file; unpack it first (bunzip2)"),
    (b"\xfd7zXZ\0", 0, "an xz file; unpack it first (unxz)"),
    (b"\x28\xb5\x2f\xfd", 0, "a zstd file; unpack it first (unzstd)"),
    (b"7z\xbc\xaf\x27\x1c", 0, "a 7-zip file; unpack it first"),
    (b"Rar!", 0, "a rar file; unpack it first"),
    (b"\x89HDF\r\n\x1a\n", 0, "an HDF5 file (Keras); no file of torch's"),
    (b"\x93NUMPY", 0, "a numpy file; it has no state of Apex, numpy.load opens it"),
    (b"GGUF", 0, "a GGUF file; it has weights only and no state of Apex"),
    (b"version https://git-lfs", 0, "a pointer of Git LFS instead of the file; fetch the file (git lfs pull)"),
    (b"ustar", 257, "a tar file; unpack it first. If torch before 0.1.12 wrote it, it's older than Apex"),
    (b"%PDF", 0, "a PDF file"),
    (b"\x89PNG", 0, "a picture"),
    (b"\x7fELF", 0, "a program"),
    (b"PK\x05\x06", 0, "a zip file without any content"),
)
_WEB_PAGES = (b"<!doctype", b"<html", b"<?xml")

#: the first operation of a pickle: a protocol, or what the protocols 0 and 1 begin an object with
_FIRST_OPERATIONS = frozenset(b"\x80(])}ldtcNIJKMLFGSTUVX.")


def what_it_is(head: bytes) -> str | None:
    """Return what a file with these first bytes is, or None if it may be a zip file or a pickle."""
    if not head:
        return "an empty file; the run that wrote it stopped early, or a download failed"
    for magic, position, what in _KINDS:
        if head[position : position + len(magic)] == magic:
            return what
    if head.lstrip()[:9].lower().startswith(_WEB_PAGES):
        return "a web page; the download got an error page or a login instead of the file"
    if _is_safetensors(head):
        return "a safetensors file; it has weights only, no optimizer and no state of Apex, and loads as it is"
    if not head.strip(b"\0"):
        return "a file of zeros; it was cut off while it was written"
    if head[0] not in _FIRST_OPERATIONS or _is_json(head):
        return "a text file" if _is_text(head) else "no file that torch.save or pickle wrote"
    return None


def _is_safetensors(head: bytes) -> bool:
    """Eight bytes for the length of a JSON text, and that text. No pickle has these zeros."""
    return head[5:8] == bytes(3) and head[8:9] == b"{" and head[9:10] in (b'"', b"}", b" ")


def _is_json(head: bytes) -> bool:
    if head[:1] not in (b"(", b"]", b"}", b"N"):
        return False
    try:
        json.loads(head)
    except ValueError:
        return False
    return True


def _is_text(head: bytes) -> bool:
    try:
        text = head[:-4].decode("utf-8") if len(head) > 8 else head.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return all(each.isprintable() or each in "\r\n\t" for each in text)
