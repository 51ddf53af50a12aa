"""What a candidate can reach in the sandbox, with its system calls unfiltered: the namespaces alone must hold."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pydantic
import pytest
from support.candidates import DEEDS, LIMITS, LONG_S, Bench, bench, build
from support.deeds import doing, ended, need_bubblewrap, said

import kernelworks
from kernelworks.errors import EnvironmentLackError, EvaluationError
from kernelworks.evaluate import sandbox as module
from kernelworks.evaluate.process import CandidatePool, WorkspaceArg
from kernelworks.evaluate.sandbox import UNCONFINED, Sandbox, find_sandbox
from kernelworks.evaluate.supervision import Cause, marked_processes


@pytest.fixture
def box() -> Sandbox:
    return replace(need_bubblewrap(), filters=False)


# What it can read and write


def test_nobody_elses_files_are_there(tmp_path: Path, box: Sandbox) -> None:
    secret = tmp_path / "secret"
    secret.write_text("golden")
    secret.chmod(0o644)
    paths = [str(secret), "/etc/passwd", "/etc/shadow", str(Path(__file__)), str(Path.home() / ".bashrc"), "/home"]
    words = ", ".join(f'"{path}"' for path in paths)
    body = f'for (auto path : {{{words}}}) printf("%d ", access(path, F_OK) ? errno : 0);'
    assert said(body, tmp_path, box).split() == ["2"] * len(paths)


def test_our_own_programs_are_there_and_no_others_of_ours(tmp_path: Path, box: Sandbox) -> None:
    folder = Path(module.__file__).parent
    body = f"""if (DIR *d = opendir("{folder}")) while (dirent *e = readdir(d)) puts(e->d_name);"""
    assert set(said(body, tmp_path, box).split()) == {".", "..", "child.py", "confine.py"}


def test_nothing_can_be_written_outside_the_private_folder(tmp_path: Path, box: Sandbox) -> None:
    body = """for (auto path :
          {"/x", "/usr/x", "/etc/x", "/dev/x", "/dev/shm/x", "/proc/sys/kernel/hostname", "/root/x"})
        printf("%d ", open(path, O_WRONLY | O_CREAT, 0600) >= 0);
      printf("%d", mkdir("/tmp/allowed", 0700) == 0);"""
    assert said(body, tmp_path, box).split() == ["0"] * 7 + ["1"]


def test_files_in_the_private_folder_are_reported(tmp_path: Path, box: Sandbox) -> None:
    body = """mkdir("one", 0); std::ofstream("two.txt") << 1; mkdir("three", 0700); std::ofstream("three/four") << 1;"""
    with doing(body, tmp_path, box) as candidate:
        candidate.call("k", LONG_S)
        ending = candidate.end()
    assert ending.files == ("one", "three", "three/four", "two.txt")
    assert ending.file_count == 4


def test_what_is_settled_was_allowed(tmp_path: Path, loose: Sandbox) -> None:
    body = """static int n = 0; std::ofstream("file" + std::to_string(n++)) << 1;"""
    with doing(body, tmp_path, loose) as candidate:
        candidate.call("k", LONG_S)
        candidate.lock()
        candidate.call("k", LONG_S)
        ending = candidate.end()
    assert ending.files == ("file1",)


def test_the_private_folder_is_of_limited_size(tmp_path: Path, box: Sandbox) -> None:
    body = """static char block[1 << 20]; int full = 0;
      for (int i = 0; i < 20; i++)
        if (write(open(std::to_string(i).c_str(), O_WRONLY | O_CREAT, 0600), block, 1 << 20) < 1 << 20) full++;
      printf("%d", full);"""
    assert 16 <= int(said(body, tmp_path, box, replace(LIMITS, folder_bytes=4 << 20))) < 20


# Who it is


def test_it_is_nobody_without_any_right(tmp_path: Path, box: Sandbox) -> None:
    text = said("""std::cout << std::ifstream("/proc/self/status").rdbuf() << std::flush;""", tmp_path, box)
    fields = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    assert fields["Uid"].split() == fields["Gid"].split() == ["65534"] * 4
    assert {fields[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert fields["NoNewPrivs"] == "1"
    assert set(fields["Groups"].split()) <= {"65534"}


def test_it_cannot_become_root(tmp_path: Path, box: Sandbox) -> None:
    body = """printf("%d %d %d", setuid(0), setgid(0), chroot("/tmp"));"""
    assert said(body, tmp_path, box) == "-1 -1 -1"


def test_other_processes_are_out_of_sight(tmp_path: Path, box: Sandbox) -> None:
    body = """DIR *d = opendir("/proc"); while (dirent *e = readdir(d)) if (atoi(e->d_name)) printf("%s ", e->d_name);
      printf("%d %d %d", getppid(), kill(1, SIGKILL), kill(-1, 0));"""
    pids = said(body, tmp_path, box).split()
    assert pids[:-3] == ["1", "2"]  # the first process and itself
    assert pids[-3] == "1"


def test_the_first_process_cannot_be_ended_or_read_from_inside(tmp_path: Path, box: Sandbox) -> None:
    body = """for (int n = 1; n < 32; n++) kill(1, n);
      usleep(50000);
      printf("%d %d %d", access("/proc/1/mem", R_OK), open("/proc/1/mem", O_RDONLY), kill(1, 0) && errno == ESRCH);"""
    assert said(body, tmp_path, box) == "-1 -1 0"


def test_there_is_no_network_not_even_the_hosts_loopback(tmp_path: Path, box: Sandbox) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port = listening.getsockname()[1]
        body = f"""int s = socket(AF_INET, SOCK_STREAM, 0);
          sockaddr_in to{{}}; to.sin_family = AF_INET; to.sin_port = htons({port});
          to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
          printf("%d", connect(s, (sockaddr *)&to, sizeof to));"""
        assert said(body, tmp_path, box) == "-1"
        assert said(body, tmp_path, UNCONFINED) == "0"  # so the attempt itself is right


def test_names_of_the_host_are_its_own(tmp_path: Path, box: Sandbox) -> None:
    body = """printf("%d", sethostname("x", 1));"""
    assert said(body, tmp_path, box) == "-1"


def test_its_number_of_processes_is_limited(tmp_path: Path, box: Sandbox) -> None:
    body = """int made = 0; for (int i = 0; i < 300; i++) { int pid = fork(); if (pid == 0) { pause(); _exit(0); }
        made += pid > 0; }
      printf("%d\\n", made);"""
    assert int(said(body, tmp_path, box, replace(LIMITS, processes=100))) < 100


def test_nothing_secret_is_in_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, box: Sandbox) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")
    body = """for (int pid : {1, 2}) {
        std::ifstream file("/proc/" + std::to_string(pid) + "/environ"); std::cout << file.rdbuf() << std::flush; }
      for (char **e = environ; *e; e++) puts(*e);"""
    text = said(body, tmp_path, box)
    assert "HOME=/tmp" in text
    assert "secret" not in text and "KERNELWORKS_HOME" not in text


# How it ends


@pytest.mark.parametrize("code", [0, 1, 121 + 7, 128 + 11])
def test_exit_codes_are_not_taken_for_signals(tmp_path: Path, box: Sandbox, code: int) -> None:
    ending = ended(f"_exit({code});", tmp_path, box)
    assert (ending.cause, ending.code, ending.signal) == (Cause.EXITED, code, None)


def test_a_whole_crowd_ends_with_it(library: Path, box: Sandbox) -> None:
    with bench(library, sandbox=box) as running:
        assert running.do("daemon") == 0
        mark = running.candidate.mark
        assert len(marked_processes(mark)) == 5
        running.candidate.end()
        assert marked_processes(mark) == []


def test_a_killed_supervisor_takes_the_sandbox_along(library: Path, box: Sandbox) -> None:
    with bench(library, sandbox=box) as running:
        assert running.do("daemon") == 0
        supervisor = min(marked_processes(running.candidate.mark))
        os.kill(supervisor, 9)
        ending = running.candidate.end()
    assert ending.cause is Cause.SUPERVISOR_LOST


def test_honest_kernels_run_with_their_threads(running: Bench) -> None:
    assert running.do("right") == 0
    assert running.do("omp_honest") == 0
    assert running.candidate.thread_count() == 2


# What is found


def test_the_sandbox_is_found_by_trying(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forbidden = tmp_path / "bwrap"
    forbidden.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n")
    forbidden.chmod(0o755)
    for path, why in (("", "not installed"), (str(tmp_path), "No permissions to create a new namespace")):
        monkeypatch.setenv("PATH", path)
        find_sandbox.cache_clear()
        try:
            found = find_sandbox()
        finally:
            find_sandbox.cache_clear()
        assert found.kind == "none"
        assert why in found.lacking[0]
        with pytest.raises(EnvironmentLackError, match=rf"kernel k\.cpp needs a sandbox.*{why}") as caught:
            found.require("kernel k.cpp")
        assert "make system-deps" in caught.value.mend and "--allow-unsandboxed" in caught.value.mend


def test_with_a_sandbox_nothing_is_refused() -> None:
    need_bubblewrap().require("kernel k.cpp")


def test_an_ordinary_user_gets_a_sandbox_too() -> None:
    need_bubblewrap()
    if os.geteuid() != 0:
        pytest.skip("every other test shows it")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        build("#include <cstdio>\n#include <unistd.h>\n" + WHO, home)
        for path in (home, *home.iterdir()):
            os.chown(path, USER, USER)
        python = _interpreter_for_everybody(home)
        done = _as_user(home, python, "-c", OF_A_USER.format(library=str(home / "library.so")))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["bubblewrap", "65534", "1"], done.stdout


USER = 4321
WHO = 'extern "C" int launch() { printf("%d %d", getuid(), setuid(0) != 0); fflush(stdout); return 0; }'
OF_A_USER = """
from pathlib import Path
from kernelworks.evaluate.process import Candidate
from kernelworks.evaluate.sandbox import find_sandbox
from kernelworks.evaluate.supervision import Limits
from dataclasses import replace
found = find_sandbox()
print(found.kind, *found.lacking)
sandbox = replace(found, filters=False)
with Candidate.start(Path({library!r}), threads=2, limits=Limits(), sandbox=sandbox) as candidate:
    candidate.bind("k", [])
    candidate.call("k", 60.0)
    print(candidate.end().stdout.text)
"""


def _as_user(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    paths = [str(Path(kernelworks.__file__).parent.parent), str(Path(pydantic.__file__).parent.parent)]
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(home),
        "KERNELWORKS_HOME": str(home),
        "PYTHONPATH": ":".join(paths),
        "CXX": "/nonexistent",  # no shims: building them takes long and shows nothing here
    }
    who = [f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]
    # Through env: the first program after setpriv is still looked up with root's rights.
    return subprocess.run(["setpriv", *who, "env", *words], env=environment, cwd="/", capture_output=True, text=True)


def _interpreter_for_everybody(home: Path) -> str:
    if _as_user(home, "bwrap", "--unshare-user", "--ro-bind", "/", "/", "true").returncode != 0:
        pytest.skip("user namespaces are forbidden here")
    for python in (str(Path(sys.executable).resolve()), "/usr/bin/python3"):
        if _as_user(home, python, "-c", "import kernelworks.evaluate.process").returncode == 0:
            return python
    pytest.skip("no interpreter that everybody may run")


# The pool


def test_closing_the_pool_ends_whoever_is_called(library: Path) -> None:
    pool = CandidatePool(threads=1, limits=LIMITS)
    candidate = pool.start(library)
    raised: list[BaseException] = []

    def call() -> None:
        scratch = WorkspaceArg("scratch", 64)
        candidate.bind("k", [scratch, scratch, scratch, 1, 1.0, False, DEEDS["spin"]])
        try:
            candidate.call("k", 600.0)
        except EvaluationError as error:
            raised.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    while not any(_cpu_ticks(pid) > 20 for pid in marked_processes(candidate.mark)):  # it spins
        time.sleep(0.05)
    pool.close()
    thread.join(LONG_S)
    assert not thread.is_alive()
    assert "session was closed" in str(raised[0])
    assert marked_processes(candidate.mark) == []
    with pytest.raises(EvaluationError, match="closed"):
        pool.start(library)


def _cpu_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])
