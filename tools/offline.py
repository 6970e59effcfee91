"""Run a command with the network off (standard library only).

    python tools/offline.py pytest …

Linux: in a network namespace of its own in which only the loopback interface is up (Jupyter kernels
talk to their clients through it). Where namespaces are not allowed: the variable
``COURSE_NETWORK=guard`` tells tests/conftest.py to refuse sockets that leave the machine, and child
processes get a proxy that nobody answers.
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence

INSIDE = "--inside"
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1


def namespace_command() -> list[str] | None:
    """The ``unshare`` call that this user may make, or None."""
    if not sys.platform.startswith("linux") or not shutil.which("unshare"):
        return None
    for options in (["-n"], ["-r", "-n"]):
        command = ["unshare", *options]
        if subprocess.run([*command, "true"], capture_output=True).returncode == 0:
            return command
    return None


def bring_loopback_up() -> None:
    import fcntl  # Linux only, and so is the caller

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sh14s", b"lo", 0, b"")
        flags = struct.unpack("16sh14s", fcntl.ioctl(probe, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(probe, SIOCSIFFLAGS, struct.pack("16sh14s", b"lo", flags | IFF_UP, b""))


def guarded_environment(environment: dict[str, str]) -> dict[str, str]:
    """``environment`` with a proxy that refuses, for programs that the socket guard cannot see."""
    nobody = "http://127.0.0.1:9"
    proxies = dict.fromkeys(
        ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), nobody
    )
    local = {"no_proxy": "localhost,127.0.0.1,::1", "NO_PROXY": "localhost,127.0.0.1,::1"}
    return environment | proxies | local | {"COURSE_NETWORK": "guard"}


def main(arguments: Sequence[str]) -> int:
    if not arguments:
        print("usage: python tools/offline.py COMMAND …", file=sys.stderr)
        return 2
    if arguments[0] == INSIDE:
        bring_loopback_up()
        os.execvp(arguments[1], list(arguments[1:]))
    namespace = namespace_command()
    if namespace:
        print("[offline] network off (own network namespace, loopback only)", flush=True)
        os.environ["COURSE_NETWORK"] = "off"
        os.execvp(namespace[0], [*namespace, sys.executable, __file__, INSIDE, *arguments])
    print("[offline] network refused by a socket guard (no namespaces on this system)", flush=True)
    return subprocess.run(list(arguments), env=guarded_environment(dict(os.environ))).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
