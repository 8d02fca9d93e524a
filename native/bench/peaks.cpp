#include "bench/peaks.h"

#include <immintrin.h>

#include <cstring>

#include "cpu/tiles.h"

// Twelve independent accumulators cover a latency of 4 to 5 cycles on two ports. They start at different
// values, or the compiler would compute one for all; the empty asm keeps it from folding operands that it
// could prove constant.
#define KVASIR_TARGET(isa) __attribute__((target(isa)))
#define KVASIR_UNROLL _Pragma("GCC unroll 12")

namespace kvasir::peaks {
namespace {

constexpr int kAccumulators = 12;

// A result that depends on the whole loop, for the caller to keep.
std::uint64_t first_word(const void* vector) {
  std::uint64_t word;
  std::memcpy(&word, vector, sizeof word);
  return word;
}

std::uint64_t read_baseline(const char* data, std::size_t n) {
  __m128i sum[8] = {};
  for (std::size_t at = 0; at < n; at += 128) {
    KVASIR_UNROLL
    for (int i = 0; i < 8; ++i)
      sum[i] = _mm_xor_si128(sum[i], _mm_load_si128(reinterpret_cast<const __m128i*>(data + at) + i));
  }
  for (int i = 1; i < 8; ++i) sum[0] = _mm_xor_si128(sum[0], sum[i]);
  return first_word(&sum[0]);
}

KVASIR_TARGET("avx2") std::uint64_t read_avx2(const char* data, std::size_t n) {
  __m256i sum[8] = {};
  for (std::size_t at = 0; at < n; at += 256) {
    KVASIR_UNROLL
    for (int i = 0; i < 8; ++i)
      sum[i] = _mm256_xor_si256(sum[i], _mm256_load_si256(reinterpret_cast<const __m256i*>(data + at) + i));
  }
  for (int i = 1; i < 8; ++i) sum[0] = _mm256_xor_si256(sum[0], sum[i]);
  return first_word(&sum[0]);
}

KVASIR_TARGET("avx512f") std::uint64_t read_avx512(const char* data, std::size_t n) {
  __m512i sum[8] = {};
  for (std::size_t at = 0; at < n; at += 512) {
    KVASIR_UNROLL
    for (int i = 0; i < 8; ++i) sum[i] = _mm512_xor_si512(sum[i], _mm512_load_si512(data + at + i * 64));
  }
  for (int i = 1; i < 8; ++i) sum[0] = _mm512_xor_si512(sum[0], sum[i]);
  return first_word(&sum[0]);
}

constexpr int kTileSums = 6;

struct alignas(64) TileShapes {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Whole tiles: six sums over two inputs.
std::uint64_t int8_amx(long iterations) {
  const TileShapes shapes;
  asm volatile("ldtilecfg %0" : : "m"(shapes));
  for (long n = 0; n < iterations; ++n)
    asm volatile(
        "tdpbssd %%tmm7, %%tmm6, %%tmm0\n\ttdpbssd %%tmm7, %%tmm6, %%tmm1\n\t"
        "tdpbssd %%tmm7, %%tmm6, %%tmm2\n\ttdpbssd %%tmm7, %%tmm6, %%tmm3\n\t"
        "tdpbssd %%tmm7, %%tmm6, %%tmm4\n\ttdpbssd %%tmm7, %%tmm6, %%tmm5"
        :
        :);
  std::int32_t sums[16][16];
  asm volatile("tilestored %%tmm0, (%0,%1,1)\n\ttilerelease" : : "r"(sums), "r"(std::int64_t{64}) : "memory");
  return first_word(sums);
}

KVASIR_TARGET("avx512f,avx512vnni") std::uint64_t int8_avx512_vnni(long iterations) {
  __m512i x = _mm512_set1_epi8(3), y = _mm512_set1_epi8(1), acc[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm512_set1_epi32(i);
  for (long n = 0; n < iterations; ++n) {
    asm volatile("" : "+v"(x), "+v"(y));
    KVASIR_UNROLL
    for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm512_dpbusd_epi32(acc[i], x, y);
  }
  for (int i = 1; i < kAccumulators; ++i) acc[0] = _mm512_add_epi32(acc[0], acc[i]);
  return first_word(&acc[0]);
}

KVASIR_TARGET("avx2") std::uint64_t int8_avx2(long iterations) {
  __m256i x = _mm256_set1_epi8(3), y = _mm256_set1_epi8(1), one = _mm256_set1_epi16(1), acc[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm256_set1_epi32(i);
  for (long n = 0; n < iterations; ++n) {
    KVASIR_UNROLL
    for (int i = 0; i < kAccumulators; ++i) {
      asm volatile("" : "+x"(x), "+x"(y));
      acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), one));
    }
  }
  for (int i = 1; i < kAccumulators; ++i) acc[0] = _mm256_add_epi32(acc[0], acc[i]);
  return first_word(&acc[0]);
}

KVASIR_TARGET("avx512f,avx512bw,avx512bf16") std::uint64_t bf16_avx512(long iterations) {
  __m512i x = _mm512_set1_epi16(0x3f80), y = _mm512_set1_epi16(0x3c00);
  __m512 acc[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm512_set1_ps(static_cast<float>(i));
  for (long n = 0; n < iterations; ++n) {
    asm volatile("" : "+v"(x), "+v"(y));
    KVASIR_UNROLL
    for (int i = 0; i < kAccumulators; ++i)
      acc[i] = _mm512_dpbf16_ps(acc[i], reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(y));
  }
  for (int i = 1; i < kAccumulators; ++i) acc[0] = _mm512_add_ps(acc[0], acc[i]);
  return first_word(&acc[0]);
}

KVASIR_TARGET("avx512f") std::uint64_t fp32_avx512(long iterations) {
  __m512 x = _mm512_set1_ps(1.0001f), y = _mm512_set1_ps(1e-6f), acc[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm512_set1_ps(static_cast<float>(i));
  for (long n = 0; n < iterations; ++n) {
    asm volatile("" : "+v"(x), "+v"(y));
    KVASIR_UNROLL
    for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm512_fmadd_ps(x, y, acc[i]);
  }
  for (int i = 1; i < kAccumulators; ++i) acc[0] = _mm512_add_ps(acc[0], acc[i]);
  return first_word(&acc[0]);
}

KVASIR_TARGET("avx2,fma") std::uint64_t fp32_avx2(long iterations) {
  __m256 x = _mm256_set1_ps(1.0001f), y = _mm256_set1_ps(1e-6f), acc[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm256_set1_ps(static_cast<float>(i));
  for (long n = 0; n < iterations; ++n) {
    asm volatile("" : "+x"(x), "+x"(y));
    KVASIR_UNROLL
    for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm256_fmadd_ps(x, y, acc[i]);
  }
  for (int i = 1; i < kAccumulators; ++i) acc[0] = _mm256_add_ps(acc[0], acc[i]);
  return first_word(&acc[0]);
}

// Operations of one iteration: accumulators x multiply-adds of one instruction x 2.
constexpr double ops(int pairs) { return kAccumulators * pairs * 2.0; }

}  // namespace

Read best_read() {
  if (__builtin_cpu_supports("avx512f")) return read_avx512;
  if (__builtin_cpu_supports("avx2")) return read_avx2;
  return read_baseline;
}

Peak best_int8() {
  if (has_tiles()) return {int8_amx, kTileSums * 16 * 16 * 64 * 2.0, ""};
  if (__builtin_cpu_supports("avx512vnni")) return {int8_avx512_vnni, ops(64), ""};
  if (__builtin_cpu_supports("avx2")) return {int8_avx2, ops(32), ""};
  return {nullptr, 0, "the CPU has neither AVX-512 VNNI nor AVX2"};
}

Peak best_bf16() {
  if (__builtin_cpu_supports("avx512bf16")) return {bf16_avx512, ops(32), ""};
  return {nullptr, 0, "the CPU has no AVX-512 BF16"};
}

Peak best_fp32() {
  if (__builtin_cpu_supports("avx512f")) return {fp32_avx512, ops(16), ""};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {fp32_avx2, ops(8), ""};
  return {nullptr, 0, "the CPU has neither AVX-512 nor AVX2 with FMA"};
}

}  // namespace kvasir::peaks
