// The doorbell: the harness rings, a candidate's process calls and answers, and the harness's clock runs meanwhile.
//
// Both sides map one page and sleep on words of it (futexes): spinning would take a core from whoever computes. The
// clock is read here, in the harness's process, and not in Python, which may wait for its interpreter lock. What the
// candidate writes into the page can end a wait too early or never; neither goes unseen: processor time that its
// process uses after its answer counts against it, and the harness looks at the clock in slices.

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

namespace {

// Same layout as kernelworks.evaluate.doorbell and child.Bell. Each side writes to a cache line of its own.
struct Page {
    alignas(64) std::atomic<std::uint32_t> go; // number of the ring
    std::uint32_t program;                     // what to call
    alignas(64) std::atomic<std::uint32_t> done; // number of the ring that was answered
    std::int32_t returned;
};
static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && offsetof(Page, done) == 64, "the layout is a contract");

// Same layout as kernelworks.evaluate.doorbell.Record.
struct Record {
    std::int64_t begun_ns;
    std::int64_t elapsed_ns; // 0: no answer yet
    std::int64_t cpu_before_ns;
    std::int64_t cpu_after_ns;
};

std::int64_t now_ns(clockid_t clock) {
    timespec now;
    return clock_gettime(clock, &now) == 0 ? now.tv_sec * 1000000000LL + now.tv_nsec : -1;
}

long futex(std::atomic<std::uint32_t> *word, int operation, std::uint32_t value, const timespec *timeout) {
    return syscall(SYS_futex, word, operation, value, timeout, nullptr, 0);
}

void await(Page *page, std::uint32_t ring, std::int64_t until_ns, clockid_t cpu, Record *record) {
    for (;;) {
        const std::uint32_t found = page->done.load(std::memory_order_acquire);
        const std::int64_t now = now_ns(CLOCK_MONOTONIC);
        if (found == ring) {
            record->elapsed_ns = now - record->begun_ns;
            record->cpu_after_ns = now_ns(cpu);
            return;
        }
        if (now >= until_ns)
            return;
        const std::int64_t left = until_ns - now;
        const timespec timeout = {static_cast<time_t>(left / 1000000000), static_cast<long>(left % 1000000000)};
        futex(&page->done, FUTEX_WAIT, found, &timeout);
    }
}

struct Sweep {
    const volatile std::uint64_t *words;
    std::size_t count;
    std::uint64_t sum;
};

// One read a cache line; loads that nobody waits for, so that the memory is the limit.
void *sweep(void *argument) {
    auto *part = static_cast<Sweep *>(argument);
    std::uint64_t sum = 0;
    for (std::size_t at = 0; at < part->count; at += 8)
        sum += part->words[at];
    part->sum = sum;
    return nullptr;
}

} // namespace

// Harness: ring, and wait for the answer at most so long. cpu is the clock of the candidate's processor time.
extern "C" void kernelworks_ring(Page *page, std::uint32_t ring, std::uint32_t program, std::int64_t slice_ns,
                                 std::int32_t cpu, Record *record) {
    record->elapsed_ns = 0;
    page->program = program;
    record->cpu_before_ns = now_ns(cpu);
    record->begun_ns = now_ns(CLOCK_MONOTONIC);
    page->go.store(ring, std::memory_order_release);
    futex(&page->go, FUTEX_WAKE, 1, nullptr);
    await(page, ring, record->begun_ns + slice_ns, cpu, record);
}

// Harness: wait on.
extern "C" void kernelworks_await(Page *page, std::uint32_t ring, std::int64_t slice_ns, std::int32_t cpu,
                                  Record *record) {
    await(page, ring, now_ns(CLOCK_MONOTONIC) + slice_ns, cpu, record);
}

// Harness: read size_bytes from buffer on + i * size_bytes on each processor i of a list; 0, or an error number.
extern "C" int kernelworks_sweep(const void *buffer, std::size_t size_bytes, const std::int32_t *processors,
                                 std::int32_t count) {
    std::vector<pthread_t> threads(count);
    std::vector<Sweep> parts(count);
    int error = 0, started = 0;
    for (; started < count && error == 0; started++) {
        const auto *start = static_cast<const char *>(buffer) + started * size_bytes;
        parts[started] = {reinterpret_cast<const volatile std::uint64_t *>(start), size_bytes / 8, 0};
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        cpu_set_t *set = CPU_ALLOC(processors[started] + 1);
        const std::size_t set_bytes = CPU_ALLOC_SIZE(processors[started] + 1);
        CPU_ZERO_S(set_bytes, set);
        CPU_SET_S(processors[started], set_bytes, set);
        pthread_attr_setaffinity_np(&attributes, set_bytes, set);
        error = pthread_create(&threads[started], &attributes, sweep, &parts[started]);
        CPU_FREE(set);
        pthread_attr_destroy(&attributes);
        if (error != 0)
            break;
    }
    for (int at = 0; at < started; at++)
        pthread_join(threads[at], nullptr);
    return error;
}

// Candidate: sleep until another ring than the last one; its number.
extern "C" std::uint32_t kernelworks_wait(Page *page, std::uint32_t last) {
    std::uint32_t found;
    while ((found = page->go.load(std::memory_order_acquire)) == last)
        futex(&page->go, FUTEX_WAIT, last, nullptr);
    return found;
}

// Candidate: answer a ring, and sleep until the next; its number.
extern "C" std::uint32_t kernelworks_answer(Page *page, std::uint32_t ring, std::int32_t returned) {
    page->returned = returned;
    page->done.store(ring, std::memory_order_release);
    futex(&page->done, FUTEX_WAKE, 1, nullptr);
    return kernelworks_wait(page, ring);
}

// What the harness calls to learn what the path itself takes: any arguments, no work.
extern "C" int launch() { return 0; }
