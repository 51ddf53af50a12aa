// Peak rates of arithmetic with all cores: chains of fused multiply-adds, alone and with additions beside them, and of
// dot products where the processor has such instructions. Everything stays in registers.
#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace {

// Chains are two arrays: compilers do not unroll a loop over both at once, and it would go through memory.
constexpr double kSample = 2e-3;  // Seconds of one sample; well above the cost of waking threads.

// A kind of arithmetic: a vector, how many numbers it holds, and its instructions.
#if defined(__AVX512F__)
constexpr int kChains = 12;  // Two sets of them fill the registers.
struct Float32 {
    using Vector = __m512;
    static constexpr double lanes = 16;
    static Vector all(double v) { return _mm512_set1_ps(static_cast<float>(v)); }
    static Vector fused(Vector x, Vector a, Vector b) { return _mm512_fmadd_ps(x, a, b); }
    static Vector add(Vector x, Vector a) { return _mm512_add_ps(x, a); }
};
struct Float64 {
    using Vector = __m512d;
    static constexpr double lanes = 8;
    static Vector all(double v) { return _mm512_set1_pd(v); }
    static Vector fused(Vector x, Vector a, Vector b) { return _mm512_fmadd_pd(x, a, b); }
    static Vector add(Vector x, Vector a) { return _mm512_add_pd(x, a); }
};
#elif defined(__FMA__)
constexpr int kChains = 6;
struct Float32 {
    using Vector = __m256;
    static constexpr double lanes = 8;
    static Vector all(double v) { return _mm256_set1_ps(static_cast<float>(v)); }
    static Vector fused(Vector x, Vector a, Vector b) { return _mm256_fmadd_ps(x, a, b); }
    static Vector add(Vector x, Vector a) { return _mm256_add_ps(x, a); }
};
struct Float64 {
    using Vector = __m256d;
    static constexpr double lanes = 4;
    static Vector all(double v) { return _mm256_set1_pd(v); }
    static Vector fused(Vector x, Vector a, Vector b) { return _mm256_fmadd_pd(x, a, b); }
    static Vector add(Vector x, Vector a) { return _mm256_add_pd(x, a); }
};
#elif defined(__x86_64__)
constexpr int kChains = 6;
struct Float32 {  // No fused instruction: a multiplication and an addition.
    using Vector = __m128;
    static constexpr double lanes = 4;
    static Vector all(double v) { return _mm_set1_ps(static_cast<float>(v)); }
    static Vector fused(Vector x, Vector a, Vector b) { return _mm_add_ps(_mm_mul_ps(x, a), b); }
    static Vector add(Vector x, Vector a) { return _mm_add_ps(x, a); }
};
struct Float64 {
    using Vector = __m128d;
    static constexpr double lanes = 2;
    static Vector all(double v) { return _mm_set1_pd(v); }
    static Vector fused(Vector x, Vector a, Vector b) { return _mm_add_pd(_mm_mul_pd(x, a), b); }
    static Vector add(Vector x, Vector a) { return _mm_add_pd(x, a); }
};
#elif defined(__ARM_NEON) && defined(__aarch64__) && !defined(__ARM_FEATURE_SVE)
constexpr int kChains = 12;
struct Float32 {
    using Vector = float32x4_t;
    static constexpr double lanes = 4;
    static Vector all(double v) { return vdupq_n_f32(static_cast<float>(v)); }
    static Vector fused(Vector x, Vector a, Vector b) { return vfmaq_f32(b, x, a); }
    static Vector add(Vector x, Vector a) { return vaddq_f32(x, a); }
};
struct Float64 {
    using Vector = float64x2_t;
    static constexpr double lanes = 2;
    static Vector all(double v) { return vdupq_n_f64(v); }
    static Vector fused(Vector x, Vector a, Vector b) { return vfmaq_f64(b, x, a); }
    static Vector add(Vector x, Vector a) { return vaddq_f64(x, a); }
};
#else
#define KERNELWORKS_NO_FLOAT_PEAK 1  // Vectors of unknown length would be understated, so nothing is said.
#endif

template <typename Vector>
void keep(const Vector& value) {
    asm volatile("" : : "m"(value));
}

// Values that the compiler does not know, so that it takes no two chains for one.
template <typename Vector, int kCount>
void start(Vector (&chains)[kCount], Vector value) {
    for (Vector& chain : chains) {
        chain = value;
        asm volatile("" : "+m"(chain));
    }
}

#if !defined(KERNELWORKS_NO_FLOAT_PEAK)
// Operations done by one thread in `steps` steps. Values stay near 1.
template <typename T>
double fused_chains(int64_t steps) {
    typename T::Vector x[kChains], y[kChains];
    start(x, T::all(1.0));
    start(y, T::all(1.0));
    const auto a = T::all(0.75), b = T::all(0.25);
    for (int64_t i = 0; i < steps; ++i)
        for (int j = 0; j < kChains; ++j) {
            x[j] = T::fused(x[j], a, b);
            y[j] = T::fused(y[j], a, b);
        }
    for (auto& v : x) keep(v);
    for (auto& v : y) keep(v);
    return static_cast<double>(steps) * 2 * kChains * 2 * T::lanes;
}

template <typename T>
double fused_and_sums(int64_t steps) {
    typename T::Vector x[kChains], y[kChains];
    start(x, T::all(1.0));
    start(y, T::all(1.0));
    const auto a = T::all(0.75), b = T::all(0.25);
    for (int64_t i = 0; i < steps; ++i)
        for (int j = 0; j < kChains; ++j) {
            x[j] = T::fused(x[j], a, b);
            y[j] = T::add(y[j], b);
        }
    for (auto& v : x) keep(v);
    for (auto& v : y) keep(v);
    return static_cast<double>(steps) * kChains * 3 * T::lanes;
}
#endif

#if defined(__AVX512BF16__)
double bfloat16_products(int64_t steps) {
    __m512 x[kChains], y[kChains];
    start(x, _mm512_setzero_ps());
    start(y, _mm512_setzero_ps());
    const __m512bh a = _mm512_cvtne2ps_pbh(_mm512_set1_ps(1.0f), _mm512_set1_ps(-1.0f));
    const __m512bh b = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5f), _mm512_set1_ps(0.5f));
    for (int64_t i = 0; i < steps; ++i)
        for (int j = 0; j < kChains; ++j) {
            x[j] = _mm512_dpbf16_ps(x[j], a, b);
            y[j] = _mm512_dpbf16_ps(y[j], a, b);
        }
    for (auto& v : x) keep(v);
    for (auto& v : y) keep(v);
    return static_cast<double>(steps) * 2 * kChains * 64;
}
#endif

#if defined(__AVX512FP16__)
double float16_chains(int64_t steps) {
    __m512h x[kChains], y[kChains];
    start(x, _mm512_set1_ph(static_cast<_Float16>(1.0f)));
    start(y, _mm512_set1_ph(static_cast<_Float16>(1.0f)));
    const __m512h a = _mm512_set1_ph(static_cast<_Float16>(0.75f)), b = _mm512_set1_ph(static_cast<_Float16>(0.25f));
    for (int64_t i = 0; i < steps; ++i)
        for (int j = 0; j < kChains; ++j) {
            x[j] = _mm512_fmadd_ph(x[j], a, b);
            y[j] = _mm512_fmadd_ph(y[j], a, b);
        }
    for (auto& v : x) keep(v);
    for (auto& v : y) keep(v);
    return static_cast<double>(steps) * 2 * kChains * 64;
}
#endif

#if defined(__AVX512VNNI__)
double byte_products(int64_t steps) {
    __m512i x[kChains], y[kChains];
    start(x, _mm512_setzero_si512());
    start(y, _mm512_setzero_si512());
    const __m512i a = _mm512_set1_epi8(1), b = _mm512_set1_epi8(1);
    for (int64_t i = 0; i < steps; ++i)
        for (int j = 0; j < kChains; ++j) {
            x[j] = _mm512_dpbusd_epi32(x[j], a, b);
            y[j] = _mm512_dpbusd_epi32(y[j], a, b);
        }
    for (auto& v : x) keep(v);
    for (auto& v : y) keep(v);
    return static_cast<double>(steps) * 2 * kChains * 128;
}
#elif defined(__AVXVNNI__)
double byte_products(int64_t steps) {
    __m256i x[kChains], y[kChains];
    start(x, _mm256_setzero_si256());
    start(y, _mm256_setzero_si256());
    const __m256i a = _mm256_set1_epi8(1), b = _mm256_set1_epi8(1);
    for (int64_t i = 0; i < steps; ++i)
        for (int j = 0; j < kChains; ++j) {
            x[j] = _mm256_dpbusd_avx_epi32(x[j], a, b);
            y[j] = _mm256_dpbusd_avx_epi32(y[j], a, b);
        }
    for (auto& v : x) keep(v);
    for (auto& v : y) keep(v);
    return static_cast<double>(steps) * 2 * kChains * 64;
}
#elif defined(__AVX2__)
double byte_products(int64_t steps) {  // Pairs of products summed into 16 bits: no other instruction does more.
    __m256i x[kChains], y[kChains];
    start(x, _mm256_set1_epi8(1));
    start(y, _mm256_set1_epi8(1));
    const __m256i b = _mm256_set1_epi8(1);
    for (int64_t i = 0; i < steps; ++i)
        for (int j = 0; j < kChains; ++j) {
            x[j] = _mm256_maddubs_epi16(x[j], b);
            y[j] = _mm256_maddubs_epi16(y[j], b);
        }
    for (auto& v : x) keep(v);
    for (auto& v : y) keep(v);
    return static_cast<double>(steps) * 2 * kChains * 64;
}
#endif

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Pattern {
    double (*chains)(int64_t);  // Null: not on this processor.
    int64_t steps;
    double best;  // Operations per second.
};

double sample(Pattern& pattern, int64_t threads) {
    double done = 0;
    const double begun = now();
#pragma omp parallel for schedule(static, 1) reduction(+ : done)
    for (int64_t thread = 0; thread < threads; ++thread) done += pattern.chains(pattern.steps);
    const double taken = now() - begun;
    if (done / taken > pattern.best) pattern.best = done / taken;
    return taken;
}

}  // namespace

// Operations per second, 0 where there is no such instruction: float32 fused, fused and sums; float64 likewise;
// bfloat16, float16, 8-bit integers. The patterns take turns, so that a disturbance lowers no pattern altogether.
extern "C" int measure_peaks(int64_t threads, int64_t rounds, double seconds, double* rates) {
    Pattern patterns[] = {
#if defined(KERNELWORKS_NO_FLOAT_PEAK)
        {nullptr, 1, 0}, {nullptr, 1, 0}, {nullptr, 1, 0}, {nullptr, 1, 0},
#else
        {fused_chains<Float32>, 1024, 0},
        {fused_and_sums<Float32>, 1024, 0},
        {fused_chains<Float64>, 1024, 0},
        {fused_and_sums<Float64>, 1024, 0},
#endif
#if defined(__AVX512BF16__)
        {bfloat16_products, 1024, 0},
#else
        {nullptr, 1, 0},
#endif
#if defined(__AVX512FP16__)
        {float16_chains, 1024, 0},
#else
        {nullptr, 1, 0},
#endif
#if defined(__AVX2__)
        {byte_products, 1024, 0},
#else
        {nullptr, 1, 0},
#endif
    };
    for (Pattern& pattern : patterns)
        while (pattern.chains && sample(pattern, threads) < kSample) pattern.steps *= 2;
    for (int64_t round = 0; round < rounds; ++round)
        for (Pattern& pattern : patterns) {
            const double end = now() + seconds;
            for (int i = 0; pattern.chains && (i < 2 || now() < end); ++i) sample(pattern, threads);
        }
    for (const Pattern& pattern : patterns) *rates++ = pattern.best;
    return 0;
}
