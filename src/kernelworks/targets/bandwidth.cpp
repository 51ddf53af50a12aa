// Rates of the memory hierarchy with all cores: what a kernel's floor is computed from, so the best that any honest
// code could reach. Every thread works in its own part of the working set, which it touched first.
#include <sys/mman.h>

#include <chrono>
#include <cstdint>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int64_t kWidth = 64;
#elif defined(__AVX__)
constexpr int64_t kWidth = 32;
#else
constexpr int64_t kWidth = 16;
#endif
using Vector = float __attribute__((vector_size(kWidth)));

constexpr int64_t kUnroll = 8;
constexpr int64_t kGrain = 12288;         // Halves and thirds of it hold whole unrolled steps.
constexpr double kShortestSample = 2e-3;  // Seconds; well above the cost of waking threads.

inline void store(Vector* to, Vector value) { *to = value; }

inline void stream(Vector* to, Vector value) {
#if defined(__AVX512F__)
    _mm512_stream_ps(reinterpret_cast<float*>(to), reinterpret_cast<__m512>(value));
#elif defined(__AVX__)
    _mm256_stream_ps(reinterpret_cast<float*>(to), reinterpret_cast<__m256>(value));
#elif defined(__x86_64__)
    _mm_stream_ps(reinterpret_cast<float*>(to), reinterpret_cast<__m128>(value));
#else
    *to = value;
#endif
}

inline void fence() {
#if defined(__x86_64__)
    _mm_sfence();
#endif
    asm volatile("" ::: "memory");
}

// Each pass works through one thread's part of `bytes` bytes.
void read_pass(char* part, int64_t bytes) {
    const Vector* from = reinterpret_cast<const Vector*>(part);
    Vector sums[kUnroll] = {};
    for (int64_t i = 0; i < bytes / kWidth; i += kUnroll)
        for (int64_t j = 0; j < kUnroll; ++j) sums[j] += from[i + j];
    for (int64_t j = 0; j < kUnroll; ++j) asm volatile("" : : "m"(sums[j]));
}

template <void (*write)(Vector*, Vector)>
void copy_pass(char* part, int64_t bytes) {
    const Vector* from = reinterpret_cast<const Vector*>(part);
    Vector* to = reinterpret_cast<Vector*>(part + bytes / 2);
    for (int64_t i = 0; i < bytes / 2 / kWidth; i += kUnroll)
        for (int64_t j = 0; j < kUnroll; ++j) write(to + i + j, from[i + j]);
}

template <void (*write)(Vector*, Vector)>
void triad_pass(char* part, int64_t bytes) {
    const Vector* first = reinterpret_cast<const Vector*>(part);
    const Vector* second = reinterpret_cast<const Vector*>(part + bytes / 3);
    Vector* to = reinterpret_cast<Vector*>(part + bytes / 3 * 2);
    for (int64_t i = 0; i < bytes / 3 / kWidth; i += kUnroll)
        for (int64_t j = 0; j < kUnroll; ++j) write(to + i + j, first[i + j] + 3.0f * second[i + j]);
}

template <void (*write)(Vector*, Vector)>
void fill_pass(char* part, int64_t bytes) {
    Vector* to = reinterpret_cast<Vector*>(part);
    const Vector value = Vector{} + 2.0f;
    for (int64_t i = 0; i < bytes / kWidth; i += kUnroll)
        for (int64_t j = 0; j < kUnroll; ++j) write(to + i + j, value);
}

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Pattern {
    void (*pass)(char*, int64_t);
    int64_t passes;
    double best;  // Bytes per second.
};

double sample(const Pattern& pattern, char* block, int64_t part_bytes, int64_t parts) {
    const double start = now();
#pragma omp parallel for schedule(static, 1) num_threads(static_cast<int>(parts))
    for (int64_t part = 0; part < parts; ++part)
        for (int64_t i = 0; i < pattern.passes; ++i) {
            pattern.pass(block + part * part_bytes, part_bytes);
            fence();
        }
    return now() - start;
}

void raise(Pattern& pattern, char* block, int64_t part_bytes, int64_t parts, double seconds) {
    const double end = now() + seconds;
    for (int i = 0; i < 2 || now() < end; ++i) {
        const double taken = sample(pattern, block, part_bytes, parts);
        const double rate = static_cast<double>(pattern.passes * parts * part_bytes) / taken;
        if (rate > pattern.best) pattern.best = rate;
    }
}

}  // namespace

// Bytes read plus bytes written per second: read, copy, streaming copy, triad, streaming triad, fill, streaming fill.
// The patterns take turns, `rounds` times, so that a disturbance lowers one sample of each and not every sample of one;
// every second turn leaves half of the cores idle, since fewer can be faster.
extern "C" int measure(int64_t working_set_bytes, int64_t threads, int64_t rounds, double seconds, double* rates) {
    const int64_t part_bytes = working_set_bytes / threads / kGrain * kGrain;
    const int64_t bytes = part_bytes * threads;
    if (bytes <= 0) return 1;
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return 2;
    madvise(mapped, bytes, MADV_HUGEPAGE);  // A wish: without large pages the rates are a little lower.
    char* block = static_cast<char*>(mapped);
#pragma omp parallel for schedule(static, 1)
    for (int64_t part = 0; part < threads; ++part)
        for (int64_t i = 0; i < part_bytes; i += kWidth)
            *reinterpret_cast<Vector*>(block + part * part_bytes + i) = Vector{} + 1.0f;
    Pattern patterns[] = {{read_pass, 1, 0},           {copy_pass<store>, 1, 0},  {copy_pass<stream>, 1, 0},
                          {triad_pass<store>, 1, 0},   {triad_pass<stream>, 1, 0}, {fill_pass<store>, 1, 0},
                          {fill_pass<stream>, 1, 0}};
    const int64_t count = sizeof(patterns) / sizeof(patterns[0]);
    for (Pattern& pattern : patterns) {
        const double once = sample(pattern, block, part_bytes, threads);
        if (once < kShortestSample) pattern.passes = static_cast<int64_t>(kShortestSample / once) + 1;
    }
    for (int64_t round = 0; round < rounds; ++round) {
        const int64_t parts = round % 2 == 0 ? threads : (threads + 1) / 2;
        for (Pattern& pattern : patterns) raise(pattern, block, part_bytes, parts, seconds);
    }
    for (int64_t i = 0; i < count; ++i) rates[i] = patterns[i].best;
    munmap(mapped, bytes);
    return 0;
}
