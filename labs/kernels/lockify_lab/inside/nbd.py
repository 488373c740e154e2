"""Connects a block device to an NBD server, by netlink, and anew whenever the server has ended and is back.

    nbd.py SOCKET INDEX SECONDS [TIMEOUT]      requests wait so long for the server to be back; then they are errors

A request that is not answered in TIMEOUT (5 s) is repeated on a new connection. Zeroes of gibibytes take longer.

Debian 12's nbd-client cannot do this: with it, whatever waits for a server that ends is an error. Stand-alone: a node
has Python's standard library and this file. Formats: doc/proto.md of the NBD project, linux/nbd-netlink.h.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
import time

_OPTION_MAGIC = b"IHAVEOPT"
_REPLY_MAGIC = 0x3E889045565A9
_GO, _ACK, _INFO, _INFO_EXPORT = 7, 1, 3, 0
_FIXED_NEWSTYLE, _NO_ZEROES = 1, 2

_NETLINK_GENERIC = 16
_REQUEST, _WANTS_ACK, _ERROR = 1, 4, 2
_CONTROL, _GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 16, 3, 1, 2
_CONNECT, _RECONFIGURE = 1, 3
_INDEX, _SIZE, _BLOCK_SIZE, _TIMEOUT, _SERVER_FLAGS, _SOCKETS, _DEAD_CONN_TIMEOUT = 1, 2, 3, 4, 5, 7, 8
_BLOCK = 4096


def receive(server: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = server.recv(length - len(data))
        if not piece:
            raise ConnectionError("the server has closed the connection")
        data += piece
    return data


def negotiate(path: str) -> tuple[socket.socket, int, int]:
    """A connection, the export's size, and its flags."""
    server = socket.socket(socket.AF_UNIX)
    server.settimeout(10)
    server.connect(path)
    magic, has_options, _ = struct.unpack("!8s8sH", receive(server, 18))
    if (magic, has_options) != (b"NBDMAGIC", _OPTION_MAGIC):
        raise ConnectionError(f"{path} is no NBD server")
    server.sendall(struct.pack("!I", _FIXED_NEWSTYLE | _NO_ZEROES))
    server.sendall(_OPTION_MAGIC + struct.pack("!IIIH", _GO, 6, 0, 0))
    size = flags = 0
    while True:
        reply, _, kind, length = struct.unpack("!QIII", receive(server, 20))
        data = receive(server, length)
        if reply != _REPLY_MAGIC or kind & (1 << 31):
            raise ConnectionError(f"the server refuses: {data!r}")
        if kind == _ACK:
            server.settimeout(None)
            return server, size, flags
        if kind == _INFO and data[:2] == struct.pack("!H", _INFO_EXPORT):
            size, flags = struct.unpack("!QH", data[2:12])


def attribute(kind: int, data: bytes) -> bytes:
    length = 4 + len(data)
    return struct.pack("=HH", length, kind) + data + bytes(-length % 4)


def number(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=Q", value))


class Netlink:
    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_GENERIC)
        self.socket.bind((0, 0))
        answer = self.ask(_CONTROL, _GET_FAMILY, attribute(_FAMILY_NAME, b"nbd\0"))
        self.family = self.read_family(answer)

    def ask(self, family: int, command: int, attributes: bytes) -> bytes:
        """Returns the answer, without the acknowledgement."""
        body = struct.pack("=BBH", command, 1, 0) + attributes
        self.socket.send(struct.pack("=IHHII", 16 + len(body), family, _REQUEST | _WANTS_ACK, 1, 0) + body)
        answer = b""
        while True:
            data = self.socket.recv(65536)
            while data:
                length, kind = struct.unpack("=IH", data[:6])
                if kind == _ERROR:
                    [code] = struct.unpack("=i", data[16:20])
                    if code:
                        raise OSError(-code, f"netlink command {command}")
                    return answer
                answer += data[20:length]
                data = data[(length + 3) & ~3 :]

    @staticmethod
    def read_family(attributes: bytes) -> int:
        while attributes:
            length, kind = struct.unpack("=HH", attributes[:4])
            if kind == _FAMILY_ID:
                [found] = struct.unpack("=H", attributes[4:6])
                return int(found)
            attributes = attributes[(length + 3) & ~3 :]
        raise OSError("this kernel has no NBD")

    def give(self, command: int, index: int, server: socket.socket, more: bytes = b"") -> None:
        sockets = attribute(_SOCKETS, attribute(1, attribute(1, struct.pack("=I", server.fileno()))))
        self.ask(self.family, command, attribute(_INDEX, struct.pack("=I", index)) + more + sockets)


def wait_for_end(server: socket.socket) -> None:
    """The kernel reads from the socket; here one only sees that it ends."""
    poll = select.poll()
    poll.register(server.fileno(), select.POLLRDHUP)
    while not any(event & (select.POLLRDHUP | select.POLLHUP | select.POLLERR) for _, event in poll.poll()):
        pass


def reconnect(path: str) -> socket.socket:
    while True:
        try:
            return negotiate(path)[0]
        except OSError:
            time.sleep(0.1)


def main() -> None:
    path, (index, seconds, *rest) = sys.argv[1], map(int, sys.argv[2:])
    timeout = rest[0] if rest else 5
    netlink = Netlink()
    server, size, flags = negotiate(path)
    # A request whose answer went down with the connection is repeated after its time-out only.
    more = number(_SIZE, size) + number(_BLOCK_SIZE, _BLOCK) + number(_TIMEOUT, timeout) + number(_SERVER_FLAGS, flags)
    netlink.give(_CONNECT, index, server, more + number(_DEAD_CONN_TIMEOUT, seconds))
    print(f"connected: {size} bytes", flush=True)
    while True:
        wait_for_end(server)
        print("the server has ended", flush=True)
        server.close()
        server = reconnect(path)
        netlink.give(_RECONFIGURE, index, server)
        print("connected again", flush=True)


main()
