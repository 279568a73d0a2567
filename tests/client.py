"""The command `attnkit` of the tests, which asks tests/server.py to run its command line instead of an interpreter.

`tests/process.py` makes a script of this file, with a call of `main` at its end; `-IS` and few imports start it fast.
"""

import _signal as signal  # the modules signal and socket would take as long as all of this
import marshal
import os
import resource
import sys
from _socket import AF_UNIX, SCM_RIGHTS, SOL_SOCKET, socket

LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)  # where they are ignored
ROOM = "ATTNKIT_TESTS_ROOM"  # the variable of a process that may take no more memory than this, in bytes
LOST = 99  # the exit code without an answer
UNBUFFERED = ("PYTHONUNBUFFERED", "1")  # the variable that the server obeys itself


def limits():
    """The limits of resources."""
    return [resource.getrlimit(kind) for kind in LIMITS]


def at_start(environment, names):
    """The variables that act when an interpreter or a library starts: their names begin with one of names."""
    return {item for item in environment.items() if item[1] and item[0].startswith(names)}


def data_size():
    """The bytes that Linux counts against a limit of the data of this process."""
    with open("/proc/self/statm") as file:
        return resource.getpagesize() * int(file.read().split()[5])


def is_open(number):
    """Whether a file descriptor is open."""
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def send(connection, request, descriptors):
    """Ask the server for a process; descriptors are {number there: number here}."""
    data = marshal.dumps(request | {"numbers": [*descriptors]})
    rights = b"".join(number.to_bytes(4, sys.byteorder) for number in descriptors.values())
    connection.sendmsg([len(data).to_bytes(4, "little")], [(SOL_SOCKET, SCM_RIGHTS, rights)])
    connection.sendall(data)


def received(connection):
    """How the process ended: its exit code, or -N if signal N ended it."""
    answer = connection.recv(4)
    return int.from_bytes(answer, "little", signed=True) if answer else LOST


def main(python, command, path, names, expected, given):
    """Run the command line of this process by the server at path, or alone if its limits or variables differ."""
    numbers = [number for number in map(int, os.listdir("/dev/fd")) if is_open(number)]
    connection = socket(AF_UNIX)
    try:
        own = at_start(os.environ, names) - {UNBUFFERED}
        if not own <= expected or limits() != given or not {0, 1, 2} <= {*numbers}:
            raise OSError
        connection.connect(path)
    except OSError:
        connection.close()
        os.execv(python, [python, command, *sys.argv[1:]])
    ignored = [int(one) for one in PASSED_ON if signal.getsignal(one) == signal.SIG_IGN]
    request = {"cwd": os.getcwd(), "environment": dict(os.environ), "arguments": sys.argv[1:], "ignored": ignored}
    send(connection, request, {number: number for number in numbers})
    for number in numbers:
        os.close(number)
    end = received(connection)
    if end < 0:
        signal.signal(-end, signal.SIG_DFL)
        os.kill(os.getpid(), -end)
    os._exit(end)
