"""Reports of both families of compilers; the kernel's file is kernel.cpp."""

from __future__ import annotations

from kernelworks.evaluate.sanitizer_report import MOST_SITES, memory_errors, undefined

HEAP = """
=================================================================
==12==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x606000002dc0 at pc 0x7f01 bp 0x7f02 sp 0x7f03
WRITE of size 32 at 0x606000002dc0 thread T0
    #0 0x7f04 in _mm256_storeu_ps(float*, float __vector(8)) /usr/lib/gcc/avxintrin.h:900
    #1 0x7f05 in launch._omp_fn.0 /tmp/x/kernel.cpp:6:13
    #2 0x7f06  (/lib/libffi.so.8+0x6f79)

0x606000002dc0 is located 4 bytes LOCATED 64-byte region [0x606000002d80,0x606000002dc0)
allocated by thread T0 here:
    #0 0x7f07 in __interceptor_malloc ../libsanitizer/asan/asan_malloc_linux.cpp:69
    #1 0x7f08 in launch /tmp/x/kernel.cpp:5

SUMMARY: AddressSanitizer: heap-buffer-overflow /tmp/x/kernel.cpp:6 in launch
"""
FAULT = """AddressSanitizer:DEADLYSIGNAL
=================================================================
==6674==ERROR: AddressSanitizer: SEGV on unknown address 0x7f737d105000 (pc 0x7f bp 0x7f sp 0x7f T0)
==6674==The signal is caused by a READ memory access.
    #0 0x7f373d105861 in launch /tmp/x/kernel.cpp:9
"""
UNDEFINED = """kernel.cpp:8:66: runtime error: signed integer overflow: 16 + 2147483647 cannot be represented
    #0 0x7fd88612cccd in launch /tmp/x/kernel.cpp:8
kernel.cpp:8:66: runtime error: signed integer overflow: 17 + 2147483647 cannot be represented
/usr/lib/avxintrin.h:881:21: runtime error: load of misaligned address 0x7f373dfbb404 for type '__m256', which needs 32
0x7f373dfbb404: note: pointer points here
  00 00 00 00
    #0 0x7f373d105d15 in _mm256_load_ps(float const*) /usr/lib/avxintrin.h:881
    #1 0x7f373d105d15 in launch /tmp/x/kernel.cpp:9
"""


def test_a_heap_error_in_the_words_of_either_compiler() -> None:
    for words in ("to the right of", "after"):
        (error,) = memory_errors(HEAP.replace("LOCATED", words))
        assert (error.kind, error.access, error.size_bytes) == ("heap-buffer-overflow", "write", 32)
        assert (error.line, error.address) == (6, 0x606000002DC0)
        assert error.near == "4 bytes past the end of a block of 64 bytes from line 5"
    for words in ("to the left of", "before"):
        assert "4 bytes before the start of" in memory_errors(HEAP.replace("LOCATED", words))[0].near


def test_a_fatal_signal() -> None:
    (error,) = memory_errors(FAULT)
    assert (error.kind, error.access, error.size_bytes, error.line) == ("SEGV", "read", 0, 9)
    assert error.address == 0x7F737D105000


def test_several_reports_and_each_line_once() -> None:
    text = HEAP + FAULT + HEAP
    assert [error.kind for error in memory_errors(text)] == ["heap-buffer-overflow", "SEGV"]
    many = "".join(HEAP.replace("kernel.cpp:6", f"kernel.cpp:{n}") for n in range(10, 40))
    assert len(memory_errors(many)) == MOST_SITES


def test_undefined_behaviour_belongs_to_the_kernels_line() -> None:
    overflow, misaligned = undefined(UNDEFINED)
    assert (overflow.line, overflow.column) == (8, 66)
    assert overflow.message.startswith("signed integer overflow: 16 + 2147483647")
    assert misaligned.line == 9
    assert misaligned.message.startswith("load of misaligned address for type '__m256'")


def test_other_output_is_no_report() -> None:
    assert memory_errors("hello\n==1== nothing\n") == undefined("kernel.cpp:1: warning: hello\n") == ()
