// Everything that a candidate may do, one case each; the tests read the numbers from the comments.
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <thread>
#include <unistd.h>
#include <vector>

extern char **environ;

static void daemonise() {
    if (fork() == 0) {
        setsid();
        if (fork() == 0) {
            prctl(PR_SET_NAME, "daemon");
            signal(SIGTERM, SIG_IGN);
            for (;;)
                sleep(1000);
        }
        _exit(0);
    }
    usleep(50000);
}

static void print_much(int fd) {
    static char block[1 << 16];
    std::memset(block, 'a' + fd, sizeof block);
    for (int i = 0; i < 1600; i++)
        if (write(fd, block, sizeof block) < 0)
            return;
}

static int recurse(const volatile char *above) {
    volatile char frame[4096];
    frame[0] = *above;
    return recurse(frame) + frame[0];
}

static void spin() {
    for (std::atomic<int> i{0};; i++) {
    }
}

extern "C" int launch(const float *x, float *y, float *scratch, int64_t n, double scale, uint8_t negate, int64_t what) {
    volatile int zero = 0;
    switch (what) {
    case 0: // right
        for (int64_t i = 0; i < n; i++)
            y[i] = static_cast<float>(negate ? -scale * x[i] : scale * x[i]);
        return 0;
    case 1: // past_end
        y[n] = 1;
        return 0;
    case 2: // before_start
        y[-1] = 1;
        return 0;
    case 3: // stride_overrun
        y[2 * n] = 1;
        return 0;
    case 4: // null
        *static_cast<volatile float *>(nullptr) = 1;
        return 0;
    case 5: // spin
        spin();
        return 0;
    case 6: // daemon
        daemonise();
        return 0;
    case 7: // kill_parent
        daemonise();
        kill(getppid(), SIGKILL);
        spin();
        return 0;
    case 8: // stop_parent
        kill(getppid(), SIGSTOP);
        spin();
        return 0;
    case 9: // print_much
        std::fputs("first words\n", stdout);
        std::fflush(stdout);
        print_much(1);
        print_much(2);
        std::fputs("last words", stderr);
        return 0;
    case 10: // exit
        std::exit(0);
    case 11: // abort
        std::abort();
    case 12: // seven
        return 7;
    case 13: // allocate
        for (std::vector<char *> kept;;)
            kept.push_back(static_cast<char *>(std::memset(std::malloc(1 << 24), 1, 1 << 24)));
    case 14: // garbage
        for (int fd = 0; fd < 1024; fd++)
            if (write(fd, "{\"garbage\": 1}", 14) < 0)
                continue;
        return 0;
    case 15: // thread
        std::thread([] { sleep(1000); }).detach();
        return 0;
    case 16: // close_all
        for (int fd = 0; fd < 1024; fd++)
            close(fd);
        return 0;
    case 17: // ignore_sigterm
        for (int number = 1; number < SIGSYS; number++)
            signal(number, SIG_IGN);
        spin();
        return 0;
    case 18: // omp_past_end
#pragma omp parallel num_threads(2)
#pragma omp critical
        if (n > 0)
            y[n] = 1;
        return 0;
    case 19: // stack_overflow
        return recurse("x");
    case 20: // divide
        return static_cast<int>(n / zero);
    case 21: // scratch_past_end
        scratch[16] = 1;
        return 0;
    case 22: // scratch_kept
        std::memcpy(y, scratch, 4);
        scratch[0] = 1;
        return 0;
    case 23: // address
        std::memcpy(y, &y, sizeof y);
        return 0;
    case 24: // environment
        for (char **entry = environ; *entry; entry++)
            std::puts(*entry);
        std::fflush(stdout);
        return 0;
    case 25: // file
        return mkdtemp(std::strcpy(reinterpret_cast<char *>(y), "left-XXXXXX")) == nullptr;
    case 26: // processes
        for (int i = 0; i < 7; i++)
            if (fork() < 0)
                return 0;
        pause();
        return 0;
    case 27: // allocate_in_child
        if (fork() == 0)
            for (std::vector<char *> kept;;)
                kept.push_back(static_cast<char *>(std::memset(std::malloc(1 << 24), 1, 1 << 24)));
        spin();
        return 0;
    case 28: // kill_itself
        return kill(getpid(), SIGKILL);
    case 29: // throw
        throw 1;
    case 30: // read_past_end
        y[0] = static_cast<volatile const float *>(x)[n];
        return 0;
    case 31: // private_places
        std::printf("%s\n", getcwd(reinterpret_cast<char *>(y), 4 * n));
        for (int fd = 0; fd < 1024; fd++)
            if (fcntl(fd, F_GETFD) >= 0)
                std::printf("fd %d\n", fd);
        std::fflush(stdout);
        return 0;
    case 32: // chain
        if (fork() == 0)
            for (int i = 0; i < 1000000; i++)
                if (fork() > 0)
                    _exit(0);
        return 0;
    case 33: // sleep_50_ms
        usleep(50000);
        return 0;
    case 34: // busy_thread
        std::thread(spin).detach();
        return 0;
    case 35: // omp_honest
#pragma omp parallel for num_threads(2)
        for (int64_t i = 0; i < n; i++)
            y[i] = x[i];
        return 0;
    case 36: // beyond_the_address_space
        *reinterpret_cast<volatile float *>(0x8000000000000000ULL) = 1;
        return 0;
    case 37: // misaligned_vector
#ifdef __SSE2__
        __asm__ volatile("movaps 4(%0), %%xmm0" : : "r"(y) : "xmm0", "memory");
#endif
        return 0;
    }
    return -1;
}
