"""Which system calls a candidate may make: each is tried for real, with bubblewrap and without."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from support.candidates import LIMITS, LONG_S, build
from support.deeds import HEADERS, doing, ended, need_bubblewrap, need_filters, said, without_bubblewrap

from kernelworks.evaluate.endings import ending_of, last_deeds
from kernelworks.evaluate.lockdown import boxed, call_name, locked
from kernelworks.evaluate.process import Candidate, CandidateEndedError
from kernelworks.evaluate.program import LIBRARY_PROGRAM
from kernelworks.evaluate.sandbox import UNCONFINED, Sandbox
from kernelworks.evaluate.supervision import Cause
from kernelworks.evaluate.syscalls import LAST_KNOWN, NUMBERS
from kernelworks.kernel.verdict import Status


@pytest.fixture(params=["bubblewrap", "filters alone"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    need_filters()
    return need_bubblewrap() if request.param == "bubblewrap" else without_bubblewrap()


FORBIDDEN = {
    "fork": ("fork();", "clone"),
    "vfork": ("syscall(SYS_vfork);", "vfork"),
    "system": ('system("true");', ""),  # it blocks all signals before, so that the handler is passed over
    "execve": ('execl("/bin/true", "true", nullptr);', "execve"),
    "a daemon": ("daemon(0, 0);", "clone"),
    "socket": ("socket(AF_INET, SOCK_STREAM, 0);", "socket"),
    "unix socket": ("socket(AF_UNIX, SOCK_STREAM, 0);", "socket"),
    "datagram": ('sockaddr_in to{}; sendto(3, "x", 1, 0, (sockaddr *)&to, sizeof to);', "sendto"),
    "descriptor passing": ("msghdr m{}; sendmsg(3, &m, 0);", "sendmsg"),
    "writing": ('open("x", O_WRONLY | O_CREAT, 0600);', "openat"),
    "truncating": ('open("/dev/null", O_RDONLY | O_TRUNC);', "openat"),
    "read-write": ('open("/dev/null", O_RDWR);', "openat"),
    "a stream": ('std::ofstream("left.txt") << 1;', "openat"),
    "a directory": ('mkdirat(AT_FDCWD, "left", 0700);', "mkdirat"),
    "removing": ('unlinkat(AT_FDCWD, "left", 0);', "unlinkat"),
    "ptrace": ("syscall(SYS_ptrace, 0, 0, 0, 0);", "ptrace"),
    "another's memory": ("syscall(SYS_process_vm_readv, getppid(), 0, 0, 0, 0, 0);", "process_vm_readv"),
    "a signal to the parent": ("kill(getppid(), SIGKILL);", "kill"),
    "a signal to all": ("kill(-1, SIGKILL);", "kill"),
    "namespaces": ("unshare(CLONE_NEWUSER);", "unshare"),
    "keys": ("syscall(SYS_keyctl, 0, 0, 0, 0, 0);", "keyctl"),
    "io_uring": ("syscall(SYS_io_uring_setup, 1, 0);", "io_uring_setup"),
    "bpf": ("syscall(SYS_bpf, 0, 0, 0);", "bpf"),
    "counters": ("syscall(SYS_perf_event_open, 0, 0, 0, 0, 0);", "perf_event_open"),
    "faults in user space": ("syscall(SYS_userfaultfd, 0);", "userfaultfd"),
    "filters": ("prctl(PR_SET_SECCOMP, 0, 0, 0, 0);", "prctl"),
    "another's priority": ("syscall(SYS_setpriority, 0, getppid(), 19);", "setpriority"),
    "another's limits": ("syscall(SYS_prlimit64, getppid(), 0, 0, 0);", "prlimit64"),
    "shared memory": ("syscall(SYS_shmget, 1, 1, 0);", "shmget"),
    "in a thread": ("std::thread([] { fork(); }).join();", "clone"),
}

IN_THE_SANDBOX_TOO = ("fork", "execve", "socket", "a stream", "ptrace", "a signal to all", "in a thread")


@pytest.fixture(scope="module")
def tries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All in one library, chosen by number: compiling each would take a minute."""
    cases = "\n".join(f"case {i}: {{ {body} }} break;" for i, (body, _) in enumerate(FORBIDDEN.values()))
    text = f'{HEADERS}extern "C" int launch(int64_t what) {{ switch (what) {{ {cases} }} puts("done"); return 0; }}'
    return build(text, tmp_path_factory.mktemp("tries"))


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_no_kernel_needs_is_refused_by_name(tries: Path, name: str) -> None:
    sandbox = need_filters() if name in IN_THE_SANDBOX_TOO else without_bubblewrap()
    with Candidate.start(tries, threads=2, limits=LIMITS, sandbox=sandbox) as candidate:
        candidate.bind("k", [list(FORBIDDEN).index(name)])
        with pytest.raises(CandidateEndedError) as caught:
            candidate.call("k", LONG_S)
    ending = caught.value.exit
    assert (ending.cause, ending.signal, ending.call) == (Cause.SIGNALLED, signal.SIGSYS, FORBIDDEN[name][1])
    assert ending.stdout.text == ""
    assert ending.file_count == ending.leftover_count == ending.orphan_count == 0
    found = ending_of(caught.value, "main")
    assert (found.status, found.findings[0].kind) == (Status.DISHONEST, "forbidden_call")
    what = f"the system call {ending.call}, which" if ending.call else "a system call that"
    assert found.findings[0].message == f"tried {what} a kernel has no use for (case main, during call)"


def test_static_constructors_are_locked_in_too(tmp_path: Path, sandbox: Sandbox) -> None:
    head = "__attribute__((constructor)) static void first() { fork(); }"
    text = f'{HEADERS}{head} extern "C" int launch() {{ return 0; }}'
    with pytest.raises(CandidateEndedError) as caught:
        Candidate.start(build(text, tmp_path), threads=1, limits=LIMITS, sandbox=sandbox)
    assert caught.value.exit.call == "clone"


HONEST = """
  int found = 0;
#pragma omp parallel for schedule(dynamic) num_threads(2) reduction(+ : found)
  for (int i = 0; i < 1000; i++) found += i % 2;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; i++) threads.emplace_back([&] { __atomic_add_fetch(&found, 1, __ATOMIC_RELAXED); });
  for (auto &thread : threads) thread.join();
  std::vector<double> large(1 << 22, 1.0);
  void *pages = mmap(nullptr, 1 << 22, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  madvise(pages, 1 << 22, MADV_HUGEPAGE);
  found += munmap(pages, 1 << 22);
  std::ifstream cpuinfo("/proc/cpuinfo"), cores("/sys/devices/system/cpu/possible");
  std::string line;
  found += std::getline(cpuinfo, line) && std::getline(cores, line) ? 0 : 1000;
  found += sysconf(_SC_NPROCESSORS_ONLN) > 0 ? 0 : 1000;
  timespec now; clock_gettime(CLOCK_MONOTONIC, &now);
  unsigned char noise[8]; found += getentropy(noise, 8);
  signal(SIGFPE, SIG_DFL);
  try { throw 1; } catch (int) { found++; }
  fprintf(stderr, "words on stderr\\n");
  std::cout << found << std::endl;
"""


def test_honest_kernels_get_what_they_need(tmp_path: Path, sandbox: Sandbox) -> None:
    assert said(HONEST, tmp_path, sandbox) == "505"


@pytest.mark.parametrize(
    ("body", "cause", "number"),
    [
        ("abort();", Cause.SIGNALLED, signal.SIGABRT),
        ("raise(SIGTERM);", Cause.SIGNALLED, signal.SIGTERM),
        ("kill(getpid(), SIGKILL);", Cause.SIGNALLED, signal.SIGKILL),
        ("throw 1;", Cause.SIGNALLED, signal.SIGABRT),
        ("*(volatile int *)0 = 1;", Cause.SIGNALLED, signal.SIGSEGV),
        ("exit(3);", Cause.EXITED, None),
    ],
)
def test_ends_are_told_as_ever(
    tmp_path: Path, sandbox: Sandbox, body: str, cause: Cause, number: signal.Signals | None
) -> None:
    ending = ended(body, tmp_path, sandbox)
    assert (ending.cause, ending.signal, ending.call) == (cause, number, None)
    assert ending.code == (3 if cause is Cause.EXITED else None)


@pytest.mark.parametrize(
    "body",
    [
        "struct sigaction a{}; a.sa_handler = [](int) {}; sigaction(SIGSYS, &a, nullptr); fork();",
        "signal(SIGSYS, SIG_IGN); fork();",
        "sigset_t all; sigfillset(&all); pthread_sigmask(SIG_SETMASK, &all, nullptr); fork();",
    ],
)
def test_the_handler_cannot_be_taken_away(tmp_path: Path, sandbox: Sandbox, body: str) -> None:
    ending = ended(body, tmp_path, sandbox)
    assert (ending.cause, ending.signal) == (Cause.SIGNALLED, signal.SIGSYS)
    assert ending.orphan_count == ending.leftover_count == 0
    assert ending.call is not None


def test_calls_in_the_32_bit_way_end_the_process(tmp_path: Path, sandbox: Sandbox) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("a property of x86 processors")
    ending = ended('long n = 2; asm volatile("int $0x80" : "+a"(n) :: "memory");', tmp_path, sandbox)  # fork there
    assert (ending.cause, ending.signal) == (Cause.SIGNALLED, signal.SIGSYS)


def test_calls_that_hide_their_arguments_or_are_new_are_not_there(tmp_path: Path, sandbox: Sandbox) -> None:
    body = f"""for (long n : {{long(SYS_clone3), long(SYS_openat2), {LAST_KNOWN + 1}L, 0x40000039L}})
        printf("%d ", syscall(n, 0, 0, 0, 0) < 0 && errno == ENOSYS);"""
    assert said(body, tmp_path, sandbox).split() == ["1"] * 4


def test_the_hosts_listening_socket_hears_nothing_without_bubblewrap(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        listening.setblocking(False)
        port = listening.getsockname()[1]
        body = f"""int s = socket(AF_INET, SOCK_STREAM, 0); sockaddr_in to{{}}; to.sin_family = AF_INET;
          to.sin_port = htons({port}); to.sin_addr.s_addr = htonl(INADDR_LOOPBACK); connect(s, (sockaddr *)&to, 16);"""
        assert ended(body, tmp_path, without_bubblewrap()).call == "socket"
        with pytest.raises(BlockingIOError):
            listening.accept()


def test_a_set_up_phase_ends_with_the_lock(tmp_path: Path, sandbox: Sandbox) -> None:
    body = """static int n = 0;
      if (n++ == 0) { system("echo built > made"); printf("%d", unshare(CLONE_NEWUSER) < 0 && errno == EPERM); }
      else fork();"""
    library = build(f'{HEADERS} extern "C" int launch() {{ {body} fflush(nullptr); return 0; }}', tmp_path)
    program = replace(LIBRARY_PROGRAM, setup=True)
    with Candidate(threads=1, limits=LIMITS, program=program, sandbox=sandbox) as candidate:
        candidate.load(library)
        candidate.bind("k", [])
        assert candidate.call("k", LONG_S).returned == 0
        candidate.lock()
        with pytest.raises(CandidateEndedError) as caught:
            candidate.call("k", LONG_S)
    ending = caught.value.exit
    assert (ending.call, ending.file_count, ending.stdout.text) == ("clone", 0, "1")


def test_filters_bring_no_mitigation_that_would_slow_a_kernel_down(tmp_path: Path, sandbox: Sandbox) -> None:
    body = """std::cout << std::ifstream("/proc/self/status").rdbuf() << std::flush;"""
    found, bare = ([x for x in said(body, tmp_path, s).splitlines() if "pecul" in x] for s in (sandbox, UNCONFINED))
    assert found == bare


# Who forges


@pytest.mark.parametrize(
    "text", ['{"id": "0", "value": {"returned": 0}}', '{"id": "", "value": {"returned": 0}}', "{}", "no JSON"]
)
def test_answers_ahead_of_time_are_a_forgery(tmp_path: Path, sandbox: Sandbox, text: str) -> None:
    escaped = text.replace('"', '\\"')
    ending = ended(f'write(3, "{escaped}", {len(text)});', tmp_path, sandbox)
    assert ending.cause is Cause.FORGED


def test_a_packet_that_nobody_asked_for_is_found_at_the_end(tmp_path: Path, sandbox: Sandbox) -> None:
    body = """std::thread([] { usleep(100000); write(3, "{}", 2); }).detach();"""
    with doing(body, tmp_path, sandbox) as candidate:
        assert candidate.call("k", LONG_S).returned == 0
        while candidate.thread_count() > 1:
            time.sleep(0.01)
        ending = candidate.end()
    assert ending.cause is Cause.FORGED
    assert [finding.kind for finding in last_deeds(ending)] == ["forged"]


def test_what_is_printed_is_no_answer(tmp_path: Path, sandbox: Sandbox) -> None:
    body = r"""for (int fd : {0, 1, 2}) dprintf(fd, "{\"id\": \"0\", \"value\": {\"returned\": 5}}\n");"""
    assert "returned" in said(body, tmp_path, sandbox)


# The programs


def test_numbers_are_those_of_the_kernels_headers() -> None:
    headers = {
        "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        "aarch64": Path("/usr/include/asm-generic/unistd.h"),
    }
    looked = 0
    for machine, path in headers.items():
        if not path.exists():
            continue
        found = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", path.read_text()))
        for name, number in NUMBERS[machine].items():
            if name in found:
                assert int(found[name]) == number, (machine, name)
                looked += 1
    if not looked:
        pytest.skip("no headers of the kernel")
    assert looked > 100


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_programs_fit_and_end_in_a_return(machine: str) -> None:
    for program in (boxed(machine), locked(machine)):
        assert program is not None
        assert len(program.code) % 8 == 0 and len(program.code) // 8 <= 4096  # BPF_MAXINSNS
        assert program.code[-8:-4] == b"\x06\0\0\0"
    assert call_name(NUMBERS[machine]["socket"], machine) == "socket"
    assert call_name(400, machine) == "number 400"


def test_a_machine_without_a_table_has_no_filter() -> None:
    assert locked("riscv64") is None
    assert boxed("riscv64") is None
