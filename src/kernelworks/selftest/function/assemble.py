"""From a trick and its host to a C++ kernel file."""

from __future__ import annotations

import re
from functools import partial

from kernelworks.kernel.model import Contract
from kernelworks.selftest.bait import Bait
from kernelworks.selftest.model import Attack, Criterion, Host, Part, Trick
from kernelworks.selftest.pen import Pen

_ALWAYS = ("cmath", "cstdint", "cstring")
_WHERE_USED = {
    "algorithm": "std::(min|max|copy)",
    "atomic": "std::atomic",
    "chrono": "std::chrono",
    "condition_variable": "condition_variable",
    "cstdio": "printf|FILE|fopen|fflush|scanf",
    "cstdlib": "malloc|calloc|atoi|setenv|getenv|alloc",
    "dirent.h": "opendir",
    "dlfcn.h": "dl(open|sym)",
    "elf.h": "DT_NULL",
    "fcntl.h": "O_RDONLY|O_WRONLY",
    "exception": "std::exception",
    "functional": "std::function",
    "initializer_list": "initializer_list",
    "link.h": "ElfW",
    "mutex": "std::mutex|lock_guard",
    "netinet/in.h": "sockaddr_in",
    "sched.h": "sched_",
    "signal.h": "sig(action|nal|info_t)|SIG",
    "stdexcept": "runtime_error",
    "string": "std::string",
    "sys/mman.h": "mmap|mprotect",
    "sys/prctl.h": "prctl",
    "sys/ptrace.h": "ptrace",
    "sys/socket.h": "socket",
    "sys/uio.h": "iovec",
    "sys/wait.h": "waitpid",
    "thread": "std::(thread|this_thread)",
    "time.h": "timespec|time_t",
    "unistd.h": r"\b(fork|write|read|usleep|sleep|close|_exit|getpid|getppid|setsid)\(",
    "unordered_map": "unordered_map",
    "utility": "std::(pair|swap)",
    "vector": "std::vector",
}
"""Headers, and what tells that a file needs them."""
_FILE = """/*---
contract: function
${front}
---*/
${includes}
// ${remark}
${helpers}
static void $work(${declared}, int64_t $from, int64_t $to);
${head}
__attribute__((noinline, unused)) static void $work(${declared}, int64_t $from, int64_t $to) {
${work}
}
extern "C" int launch(${declared}) {
${body}
  return 0;
}
"""


def assemble(pen: Pen, host: Host, part: Part) -> str:
    """The whole file."""
    text = "\n".join((pen.helpers(), part.head, part.body, part.work or host.work))
    needed = [*_ALWAYS, *(name for name, use in _WHERE_USED.items() if re.search(use, text))]
    includes = "\n".join(f"#include <{name}>" for name in pen.shuffled(needed))
    return pen.write(
        _FILE,
        front=part.front,
        includes=includes,
        remark=pen.comment(),
        helpers=pen.helpers(),
        work=part.work or host.work,
        head=part.head,
        body=part.body,
        declared=host.declared,
        all=honest_call(host),
    )


def honest_call(host: Host, first: str = "0", last: str = "") -> str:
    """A statement that computes the units from ``first`` to ``last``, by default all."""
    return f"$work({host.passed}, {first}, {last or host.units});"


def plain(pen: Pen, host: Host) -> str:
    """The host's work and nothing else."""
    return assemble(pen, host, Part(body="  ${all}"))


def attack(
    id_: str,
    variant: str,
    trick: Trick,
    hosts: tuple[str, ...],
    criterion: Criterion = Criterion.REFUSED,
    *,
    finding: str = "",
    spoils: bool = False,
) -> Attack:
    """An attack under the function contract."""
    return Attack(
        id=id_,
        contract=Contract.FUNCTION,
        variant=variant,
        hosts=hosts,
        criterion=criterion,
        write=partial(_write, trick),
        twin=_twin,
        trick=trick,
        finding=finding,
        spoils=spoils,
    )


def _twin(pen: Pen, host: Host, _bait: Bait) -> str:
    return plain(pen, host)


def _write(trick: Trick, pen: Pen, host: Host, bait: Bait) -> str:
    return assemble(pen, host, trick(pen, host, bait))
