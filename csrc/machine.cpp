#include "machine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <stdexcept>

#include "affinity.h"
#include "isa.h"
#include "pool.h"
#include "tile_shapes.h"
#include "weight_memory.h"

#if defined(__x86_64__)
#pragma GCC diagnostic push  // GCC 12 warns of values that its own AVX-512 header leaves undefined on purpose
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

namespace lightwell {
namespace {

constexpr double kRunSeconds = 0.05;       // of one run: long beside starting the threads, short beside the machine's moods
constexpr int64_t kLine = 64;              // bytes the memory hands over at once
constexpr int64_t kStreams = 8;            // places that a thread reads from in turn: more requests on their way at once
constexpr int64_t kLeastBytes = 64 << 10;  // for a thread
constexpr int64_t kSteps = 1 << 16;        // of arithmetic in one pass

using Pass = std::function<void(int thread)>;

double seconds_of(Pool& pool, int64_t passes, const Pass& pass) {
  const auto begin = std::chrono::steady_clock::now();
  pool.run([&](int thread) {
    for (int64_t i = 0; i < passes; ++i) pass(thread);
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// `amount` is what all threads together do in one pass. The first pass is not counted: it wakes caches and clocks.
std::vector<double> rates(const std::vector<int>& cpus, int runs, double amount, const Pass& prepare, const Pass& pass) {
  if (cpus.empty()) throw std::invalid_argument("name at least one CPU to measure on");
  [[maybe_unused]] const SavedAffinity saved;
  Pool pool(static_cast<int>(cpus.size()));
  pool.run([&](int thread) {
    pin_thread(cpus[thread]);
    prepare(thread);
  });
  const double once = seconds_of(pool, 1, pass);
  const int64_t passes = std::max<int64_t>(1, std::llround(kRunSeconds / once));
  std::vector<double> values;
  for (int run = 0; run < runs; ++run)
    values.push_back(amount * static_cast<double>(passes) / seconds_of(pool, passes, pass));
  return values;
}

// ---- Reading: every line of a thread's share is loaded into a register once, from kStreams places in turn.

using Read = void (*)(const uint8_t* begin, int64_t stream_bytes);

#if defined(__x86_64__)
__attribute__((target("avx2"))) void read_avx2(const uint8_t* begin, int64_t stream_bytes) {
  __m256i seen[2] = {};
  for (int64_t at = 0; at < stream_bytes; at += kLine)
#pragma GCC unroll 8
    for (int64_t stream = 0; stream < kStreams; ++stream) {
      const auto* line = reinterpret_cast<const __m256i*>(begin + stream * stream_bytes + at);
      for (int half = 0; half < 2; ++half) seen[half] = _mm256_or_si256(seen[half], _mm256_load_si256(line + half));
    }
  __asm__ volatile("" : : "x"(seen[0]), "x"(seen[1]));
}
#endif

typedef uint32_t Words __attribute__((vector_size(16)));

void read_portable(const uint8_t* begin, int64_t stream_bytes) {
  Words seen[4] = {};
  for (int64_t at = 0; at < stream_bytes; at += kLine)
    for (int64_t stream = 0; stream < kStreams; ++stream) {
      const auto* line = reinterpret_cast<const Words*>(begin + stream * stream_bytes + at);
      for (int quarter = 0; quarter < 4; ++quarter) seen[quarter] |= line[quarter];
    }
  __asm__ volatile("" : : "m"(seen));
}

Read reader() {
#if defined(__x86_64__)
  if (available_isas().front() != "portable") return read_avx2;
#endif
  return read_portable;
}

// ---- Arithmetic: chains of instructions on registers that do not wait for one another. An operation is one
// multiplication or one addition, so that a fused multiply-add of 8 lanes counts as 16.

struct Peak {
  const char* isa;
  const char* format;
  double operations;  // of one step
  void (*run)(int64_t steps);
};

constexpr int kChains = 12;  // 2 instructions a cycle that take 4 each need 8 chains; 12 fit the 16 registers of AVX2

// Makes the compiler forget what it knows of a register's value, so that it computes each step anew.
#if defined(__x86_64__)
#define LIGHTWELL_FORGET(x) __asm__ volatile("" : "+x"(x))
#elif defined(__aarch64__)
#define LIGHTWELL_FORGET(x) __asm__ volatile("" : "+w"(x))
#endif

typedef float Lanes __attribute__((vector_size(16)));

void float32_portable(int64_t steps) {
  Lanes sums[kChains] = {}, x = {1, 1, 1, 1};
  for (int64_t i = 0; i < steps; ++i)
#pragma GCC unroll 12
    for (Lanes& sum : sums) {
      LIGHTWELL_FORGET(x);
      sum += x * x;
    }
  for (Lanes& sum : sums) LIGHTWELL_FORGET(sum);
}

#if defined(__x86_64__)

// Products of bytes are added up in 16 bits as long as 4-bit weights times int8 activations cannot overflow, as the
// kernels do, and only then widened: the multiplier has 9 instructions for 8 products of 32 columns.
constexpr int kByteRun = 8, kByteChains = 4;

__attribute__((target("ssse3"))) void int8_portable(int64_t steps) {
  __m128i sums[kByteChains] = {}, x = _mm_set1_epi8(1);
  const __m128i ones = _mm_set1_epi16(1);
  for (int64_t i = 0; i < steps; ++i)
#pragma GCC unroll 4
    for (__m128i& sum : sums) {
      __m128i words = _mm_maddubs_epi16(x, x);
#pragma GCC unroll 8
      for (int k = 1; k < kByteRun; ++k) {
        LIGHTWELL_FORGET(x);
        words = _mm_add_epi16(words, _mm_maddubs_epi16(x, x));
      }
      sum = _mm_add_epi32(sum, _mm_madd_epi16(words, ones));
    }
  for (__m128i& sum : sums) LIGHTWELL_FORGET(sum);
}

__attribute__((target("avx2"))) void int8_avx2(int64_t steps) {
  __m256i sums[kByteChains] = {}, x = _mm256_set1_epi8(1);
  const __m256i ones = _mm256_set1_epi16(1);
  for (int64_t i = 0; i < steps; ++i)
#pragma GCC unroll 4
    for (__m256i& sum : sums) {
      __m256i words = _mm256_maddubs_epi16(x, x);
#pragma GCC unroll 8
      for (int k = 1; k < kByteRun; ++k) {
        LIGHTWELL_FORGET(x);
        words = _mm256_add_epi16(words, _mm256_maddubs_epi16(x, x));
      }
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(words, ones));
    }
  for (__m256i& sum : sums) LIGHTWELL_FORGET(sum);
}

__attribute__((target("avx2,fma"))) void float32_avx2(int64_t steps) {
  __m256 sums[kChains] = {}, x = _mm256_set1_ps(1);
  for (int64_t i = 0; i < steps; ++i)
#pragma GCC unroll 12
    for (__m256& sum : sums) {
      LIGHTWELL_FORGET(x);
      sum = _mm256_fmadd_ps(x, x, sum);
    }
  for (__m256& sum : sums) LIGHTWELL_FORGET(sum);
}

__attribute__((target("avx512f,avx512vnni"))) void int8_avx512(int64_t steps) {
  __m512i sums[kChains] = {}, x = _mm512_set1_epi32(0x01010101);
  for (int64_t i = 0; i < steps; ++i)
#pragma GCC unroll 12
    for (__m512i& sum : sums) {
      LIGHTWELL_FORGET(x);
      sum = _mm512_dpbusd_epi32(sum, x, x);
    }
  for (__m512i& sum : sums) LIGHTWELL_FORGET(sum);
}

#if defined(LIGHTWELL_AMX)
constexpr int kAmxShare = 8;  // steps that one of AMX stands for: it takes as long as so many of the others

// Two by two registers of sums, as a kernel without anything else to do would have them.
__attribute__((target("amx-tile,amx-int8"))) void int8_amx(int64_t steps) {
  constexpr int kRegisters = 8, kRows = 16, kRowBytes = 64;
  TileShapes shapes = {};
  shapes.palette = 1;
  for (int i = 0; i < kRegisters; ++i) shapes.rows[i] = kRows, shapes.row_bytes[i] = kRowBytes;
  LIGHTWELL_LOAD_SHAPES(shapes);
  for (int64_t i = 0; i < steps; i += kAmxShare) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  _tile_release();
}
#endif

__attribute__((target("avx512f"))) void float32_avx512(int64_t steps) {
  __m512 sums[kChains] = {}, x = _mm512_set1_ps(1);
  for (int64_t i = 0; i < steps; ++i)
#pragma GCC unroll 12
    for (__m512& sum : sums) {
      LIGHTWELL_FORGET(x);
      sum = _mm512_fmadd_ps(x, x, sum);
    }
  for (__m512& sum : sums) LIGHTWELL_FORGET(sum);
}

__attribute__((target("avx512f,avx512bf16"))) void bfloat16_avx512(int64_t steps) {
  __m512 sums[kChains] = {}, x = _mm512_set1_ps(1);
  for (int64_t i = 0; i < steps; ++i)
#pragma GCC unroll 12
    for (__m512& sum : sums) {
      LIGHTWELL_FORGET(x);
      sum = _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)x);
    }
  for (__m512& sum : sums) LIGHTWELL_FORGET(sum);
}

#endif

const Peak kPeaks[] = {
#if defined(__x86_64__)
#if defined(LIGHTWELL_AMX)
    {"amx", "int8", 2.0 * 4 * 16 * 16 * 64 / kAmxShare, int8_amx},
#endif
    {"avx512", "int8", 2.0 * 64 * kChains, int8_avx512},
    {"avx512", "bf16", 2.0 * 32 * kChains, bfloat16_avx512},
    {"avx512", "fp32", 2.0 * 16 * kChains, float32_avx512},
    {"avx2", "int8", 2.0 * 32 * kByteRun * kByteChains, int8_avx2},
    {"avx2", "fp32", 2.0 * 8 * kChains, float32_avx2},
    {"portable", "int8", 2.0 * 16 * kByteRun * kByteChains, int8_portable},
#endif
    {"portable", "fp32", 2.0 * 4 * kChains, float32_portable},
};

bool available(const Peak& peak) {
  const std::vector<std::string> isas = available_isas();
  return std::find(isas.begin(), isas.end(), peak.isa) != isas.end();
}

const Peak& find_peak(const std::string& isa, const std::string& format) {
  for (const Peak& peak : kPeaks)
    if (available(peak) && isa == peak.isa && format == peak.format) return peak;
  throw std::invalid_argument("no peak of " + format + " can be measured with '" + isa + "' on this machine");
}

}  // namespace

std::vector<double> read_rates(int64_t bytes, const std::vector<int>& cpus, int runs) {
  const int64_t threads = std::max<int64_t>(1, static_cast<int64_t>(cpus.size()));
  if (bytes < threads * kLeastBytes) throw std::invalid_argument("a working set of less than 64 KiB for each thread");
  const int64_t stream_bytes = bytes / threads / kStreams / kLine * kLine, share = stream_bytes * kStreams;
  const std::shared_ptr<uint8_t> memory = weight_memory(share * threads);
  const Read read = reader();
  return rates(
      cpus, runs, static_cast<double>(share * threads),
      [&](int thread) { std::fill_n(memory.get() + thread * share, share, uint8_t{1}); },  // else it has no pages of its own
      [&](int thread) { read(memory.get() + thread * share, stream_bytes); });
}

std::vector<std::pair<std::string, std::string>> peak_formats() {
  std::vector<std::pair<std::string, std::string>> found;
  for (const Peak& peak : kPeaks)
    if (available(peak)) found.emplace_back(peak.isa, peak.format);
  return found;
}

std::vector<double> operation_rates(const std::string& isa, const std::string& format, const std::vector<int>& cpus,
                                    int runs) {
  const Peak& peak = find_peak(isa, format);
  const double operations = peak.operations * static_cast<double>(kSteps * static_cast<int64_t>(cpus.size()));
  return rates(cpus, runs, operations, [](int) {}, [&](int) { peak.run(kSteps); });
}

}  // namespace lightwell
