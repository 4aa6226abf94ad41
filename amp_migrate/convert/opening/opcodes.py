"""All operations of a pickle in one table."""

from __future__ import annotations

from typing import Mapping

from .object_opcodes import OBJECT_OPCODES
from .pickle_machine import Opcode
from .plain_opcodes import PLAIN_OPCODES

OPCODES: Mapping[bytes, Opcode] = {**PLAIN_OPCODES, **OBJECT_OPCODES}
