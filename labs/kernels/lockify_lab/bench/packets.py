"""Counts a node's packets of the lock manager, without a program that reads them.

A packet socket in the lab's network has a filter and a buffer that is always full: the kernel counts what
passed the filter (`tp_packets` holds the dropped ones, too) and copies nothing.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from pathlib import Path

from .. import control
from ..errors import LabError

DLM_PORT = 21064  # also what dlm_controld configures; the comms of a lab are as it left them
O2NET_PORT = 7777

_SOL_PACKET = 263
_PACKET_STATISTICS = 6
_SO_ATTACH_FILTER = 26

Instruction = tuple[int, int, int, int]


def payload_filter(port: int) -> list[Instruction]:
    """Classic BPF: TCP over IPv4 from or to this port, with payload. Passes one byte of it."""
    load_half, load_byte = 0x28, 0x30
    load_half_x, load_byte_x = 0x48, 0x50
    header_length_to_x = 0xB1  # 4 * (low half of a byte)
    equal, any_bit = 0x15, 0x45
    code: list[Instruction] = [
        (load_half, 0, 0, 12),
        (equal, 0, 17, 0x0800),  # IPv4
        (load_byte, 0, 0, 23),
        (equal, 0, 15, 6),  # TCP
        (load_half, 0, 0, 20),
        (any_bit, 13, 0, 0x1FFF),  # not a fragment
        (header_length_to_x, 0, 0, 14),
        (load_half_x, 0, 0, 14),
        (equal, 2, 0, port),
        (load_half_x, 0, 0, 16),
        (equal, 0, 8, port),
        (load_byte_x, 0, 0, 26),
        (0x54, 0, 0, 0xF0),  # TCP header length, in the upper half: words of four bytes
        (0x74, 0, 0, 2),
        (0x0C, 0, 0, 0),  # + IP header length
        (0x07, 0, 0, 0),  # to X
        (load_half, 0, 0, 16),  # IP total length
        (0x1D, 1, 0, 0),  # equal to X: no payload
        (0x06, 0, 0, 1),
        (0x06, 0, 0, 0),
    ]
    return code


def attach(capture: socket.socket, port: int) -> None:
    code = payload_filter(port)
    program = b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
    buffer = ctypes.create_string_buffer(program)
    pointer = struct.pack("@HxxxxxxP", len(code), ctypes.addressof(buffer))
    capture.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, pointer)
    capture.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)


class Counter:
    """Packets of one node with payload, both directions, since the last `read`."""

    def __init__(self, folder: Path, node: int, port: int) -> None:
        _, handed = control.request_with_sockets(folder, "capture", node=node)
        self._socket = socket.socket(fileno=handed[0])
        attach(self._socket, port)
        self.read()

    def read(self) -> int:
        """How many there were since the last time."""
        data = self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 12)
        if len(data) < 8:
            raise LabError("this kernel does not count packets of a packet socket")
        return int(struct.unpack_from("=II", data)[0])

    def close(self) -> None:
        self._socket.close()
