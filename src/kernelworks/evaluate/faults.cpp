// Loaded into a candidate's process before the candidate: writes down where a fatal signal struck, or which system call
// the filter refused (SIGSYS), then dies of it.
//
// The record lives in a page that the harness shares, so it outlives the process. It serves the wording of a finding
// only; that the process died, and of which signal, the harness learns from the kernel.

#include <atomic>
#include <csignal>
#include <cstdint>
#include <initializer_list>
#include <ucontext.h>

namespace {

// Same layout as kernelworks.evaluate.faults.RECORD.
struct Record {
    std::int32_t signal;
    std::uint32_t access; // 0 unknown, 1 read, 2 write, 3 without an address
    std::uint64_t address; // for SIGSYS: the number of the system call
};

Record *record;
std::atomic_flag taken = ATOMIC_FLAG_INIT;
alignas(64) char alternate_stack[64 * 1024]; // one frame with AVX-512 and AMX state needs 11 KiB

std::uint32_t access_of(int number, const siginfo_t *info, const void *context) {
#if defined(__x86_64__)
    if (number == SIGSEGV || number == SIGBUS) {
        if (info->si_code == SI_KERNEL)
            return 3; // a general protection fault: the processor gives no address, and si_addr is 0
        const auto *user = static_cast<const ucontext_t *>(context);
        return (user->uc_mcontext.gregs[REG_ERR] & 2) ? 2 : 1; // bit 1 of the page-fault error code: a write
    }
#else
    (void)number;
    (void)info;
    (void)context;
#endif
    return 0;
}

void on_fault(int number, siginfo_t *info, void *context) {
    const bool by_the_processor = info->si_code > 0; // otherwise sent by a process, without an address
    if (by_the_processor && !taken.test_and_set()) {
        record->address = number == SIGSYS ? static_cast<std::uint32_t>(info->si_syscall)
                                           : reinterpret_cast<std::uintptr_t>(info->si_addr);
        record->access = access_of(number, info, context);
        record->signal = number;
    }
    std::raise(number); // the default action, restored by SA_RESETHAND, follows when this handler returns
}

} // namespace

// Returns 0, or -1 when a handler could not be set. Threads other than the caller have no alternate stack: there
// SA_ONSTACK means the normal one, and an overflow of it dies without a record.
extern "C" int kernelworks_watch_faults(void *page) {
    record = static_cast<Record *>(page);
    stack_t stack = {};
    stack.ss_sp = alternate_stack;
    stack.ss_size = sizeof alternate_stack;
    if (sigaltstack(&stack, nullptr) != 0)
        return -1;
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND;
    sigemptyset(&action.sa_mask);
    for (int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGSYS})
        if (sigaction(number, &action, nullptr) != 0)
            return -1;
    return 0;
}
