// Integer linears whose groups of 32 have scales of more than 16 bits: a super-block's f16 scale times a
// small integer, or f32. Some have one scale for every 16 elements. Include after linear_int.inl; beside what
// that asks for, a level brings
//   void unpack5(const uint8_t* low, const uint8_t* high, Unpacked&), unpack6 likewise; weights as unpack8
//   leaves them: minus kQ5Zero / kQ6Zero is the level's rule; void unpack_table(const uint8_t*, Unpacked&):
//   codes of IQ4_NL; vf int_dot16(const Unpacked&, const int8_t* a, int half): int_dot over 16 of the 32 k;
//   float sum16(const int8_t* a).
#pragma once
#include "generic/linear_int.inl"

namespace kvasir::KVASIR_ISA {

KVASIR_INLINE vf load_u8f(const uint8_t* p) { return to_float(load_u8(p)); }
KVASIR_INLINE vf load_i8f(const uint8_t* p) { return sub(load_u8f(p), set1(128)); }  // stored + 128

struct Scales {
  vf scale[2], min[2];
};

// kHead bytes, then kSuper / 32 groups of kBytes. `scales` reads those of a group: one run of 32, or two
// of 16.
struct FormatQ4k {
  static constexpr int kSuper = 256, kHead = 64, kBytes = 288, kRuns = 1, kZero = 0;
  static constexpr bool kMins = true;
  static __attribute__((always_inline)) inline void unpack(const uint8_t* p, Unpacked& u) { unpack4(p, u); }
  static __attribute__((always_inline)) inline void scales(const uint8_t* head, const uint8_t* p, Scales& s) {
    s.scale[0] = mul(load_half(head), load_u8f(p + 256));
    s.min[0] = mul(load_half(head + 32), load_u8f(p + 272));
  }
};
struct FormatQ5k {
  static constexpr int kSuper = 256, kHead = 64, kBytes = 352, kRuns = 1, kZero = 0;
  static constexpr bool kMins = true;
  static __attribute__((always_inline)) inline void unpack(const uint8_t* p, Unpacked& u) {
    unpack5<0>(p, p + 256, u);
  }
  static __attribute__((always_inline)) inline void scales(const uint8_t* head, const uint8_t* p, Scales& s) {
    s.scale[0] = mul(load_half(head), load_u8f(p + 320));
    s.min[0] = mul(load_half(head + 32), load_u8f(p + 336));
  }
};
struct FormatQ6k {
  static constexpr int kSuper = 256, kHead = 32, kBytes = 416, kRuns = 2, kZero = kCentred ? 0 : 32;
  static constexpr bool kMins = false;
  static __attribute__((always_inline)) inline void unpack(const uint8_t* p, Unpacked& u) {
    unpack6<32>(p, p + 256, u);
  }
  static __attribute__((always_inline)) inline void scales(const uint8_t* head, const uint8_t* p, Scales& s) {
    const vf d = load_half(head);
    for (int i = 0; i < 2; i++) s.scale[i] = mul(d, load_i8f(p + 384 + 16 * i));
  }
};
struct FormatQ5z {
  static constexpr int kSuper = 32, kHead = 0, kBytes = 352, kRuns = 1, kZero = kCentred ? 0 : 16;
  static constexpr bool kMins = false;
  static __attribute__((always_inline)) inline void unpack(const uint8_t* p, Unpacked& u) {
    unpack5<16>(p, p + 256, u);
  }
  static __attribute__((always_inline)) inline void scales(const uint8_t*, const uint8_t* p, Scales& s) {
    s.scale[0] = load_half(p + 320);
  }
};
struct FormatQ5m {
  static constexpr int kSuper = 32, kHead = 0, kBytes = 384, kRuns = 1, kZero = 0;
  static constexpr bool kMins = true;
  static __attribute__((always_inline)) inline void unpack(const uint8_t* p, Unpacked& u) {
    unpack5<0>(p, p + 256, u);
  }
  static __attribute__((always_inline)) inline void scales(const uint8_t*, const uint8_t* p, Scales& s) {
    s.scale[0] = load_half(p + 320);
    s.min[0] = load_half(p + 352);
  }
};
struct FormatIq4 {
  static constexpr int kSuper = 32, kHead = 0, kBytes = 288, kRuns = 1, kZero = kQ8Zero;
  static constexpr bool kMins = false;
  static __attribute__((always_inline)) inline void unpack(const uint8_t* p, Unpacked& u) {
    unpack_table(p, u);
  }
  static __attribute__((always_inline)) inline void scales(const uint8_t*, const uint8_t* p, Scales& s) {
    s.scale[0] = load_half(p + 256);
  }
};
template <bool Mins>
struct FormatQ8x {
  static constexpr int kSuper = 32, kHead = 0, kBytes = Mins ? 768 : 640, kRuns = 2, kZero = kQ8Zero;
  static constexpr bool kMins = Mins;
  static __attribute__((always_inline)) inline void unpack(const uint8_t* p, Unpacked& u) { unpack8(p, u); }
  static __attribute__((always_inline)) inline void scales(const uint8_t*, const uint8_t* p, Scales& s) {
    const float* f = reinterpret_cast<const float*>(p + 512);
    for (int i = 0; i < 2; i++) s.scale[i] = load(f + 16 * i);
    if constexpr (Mins)
      for (int i = 0; i < 2; i++) s.min[i] = load(f + 32 + 16 * i);
  }
};

// The chain of IntTile; a group of two runs adds the lower half first.
template <class F>
struct SuperTile {
  static constexpr int kRows = kIntRows;
  static constexpr int64_t kGroups = F::kSuper / kGroup, kBlock = F::kHead + kGroups * F::kBytes;
  static constexpr bool kSums = F::kRuns == 2 && (F::kMins || F::kZero != 0);
  static int64_t bytes(int64_t K) { return K / F::kSuper * kBlock; }

  template <int MR, int NT>
  static __attribute__((always_inline)) inline void rows(const uint8_t* w, const LinearArgs& a,
                                                         const int64_t* r, vf* total) {
    const Rows& x = *a.x;
    const int64_t per_block = x.block / kGroup, n_blocks = a.K / x.block, groups = a.K / kGroup;
    const int8_t* q[MR];
    const float *sums[MR], *scales[MR];
    for (int i = 0; i < MR; i++) {
      q[i] = static_cast<const int8_t*>(x.data) + r[i] * x.ld;
      sums[i] = x.sums + r[i] * groups;
      scales[i] = x.scales + r[i] * n_blocks;
    }
    for (int n = 0; n < MR * NT; n++) total[n] = zero();
    for (int64_t b = 0, g = 0; b < n_blocks; b++) {
      vf blk[MR * NT];
      for (int n = 0; n < MR * NT; n++) blk[n] = zero();
      for (const int64_t end = g + per_block; g < end; g++)
        group<MR, NT>(w + g / kGroups * kBlock, bytes(a.K), g, a.stream, q, sums, blk);
      for (int i = 0; i < MR; i++) {
        const vf d = set1(scales[i][b]);
        for (int t = 0; t < NT; t++) total[t * MR + i] = fma(blk[t * MR + i], d, total[t * MR + i]);
      }
    }
  }

  template <int MR, int NT>
  static __attribute__((always_inline)) inline void group(const uint8_t* head, int64_t stride, int64_t g,
                                                          bool stream, const int8_t* const* q,
                                                          const float* const* sums, vf* blk) {
    Unpacked u[NT];
    Scales s[NT];
    const uint8_t* p = head + F::kHead + g % kGroups * F::kBytes;
    for (int t = 0; t < NT; t++) {
      fetch_ahead<F::kBytes>(p + t * stride, stream);
      F::unpack(p + t * stride, u[t]);
      F::scales(head + t * stride, p + t * stride, s[t]);
    }
    float sum[2][MR];
    for (int i = 0; i < MR; i++) {
      sum[0][i] = kSums ? sum16(q[i] + g * kGroup) : sums[i][g];
      sum[1][i] = sums[i][g] - sum[0][i];
    }
    if constexpr (F::kRuns == 1) {
      run<MR, NT, 0, 8>(u, s, q, g, sum, blk);
    } else {
      run<MR, NT, 0, 4>(u, s, q, g, sum, blk);
      run<MR, NT, 4, 8>(u, s, q, g, sum, blk);
    }
  }

  template <int MR, int NT, int From, int To>
  static __attribute__((always_inline)) inline void run(const Unpacked* u, const Scales* s,
                                                        const int8_t* const* q, int64_t g,
                                                        const float (*sum)[MR], vf* blk) {
    constexpr int h = From / 4;
    vf dot[MR * NT];
    int_dots<MR, NT, From, To>(u, q, g * kGroup, dot);
    for (int t = 0; t < NT; t++)
      for (int i = 0; i < MR; i++) {
        const int n = t * MR + i;
        if constexpr (F::kZero != 0) dot[n] = fma(set1(-F::kZero), set1(sum[h][i]), dot[n]);
        blk[n] = fma(dot[n], s[t].scale[h], blk[n]);
        if constexpr (F::kMins) blk[n] = fma(s[t].min[h], set1(sum[h][i]), blk[n]);
      }
  }
};

void linear_q4k(const LinearArgs& a) { run_linear<SuperTile<FormatQ4k>>(a); }
void linear_q5k(const LinearArgs& a) { run_linear<SuperTile<FormatQ5k>>(a); }
void linear_q6k(const LinearArgs& a) { run_linear<SuperTile<FormatQ6k>>(a); }
void linear_q5z(const LinearArgs& a) { run_linear<SuperTile<FormatQ5z>>(a); }
void linear_q5m(const LinearArgs& a) { run_linear<SuperTile<FormatQ5m>>(a); }
void linear_iq4(const LinearArgs& a) { run_linear<SuperTile<FormatIq4>>(a); }
void linear_q8s(const LinearArgs& a) { run_linear<SuperTile<FormatQ8x<false>>>(a); }
void linear_q8m(const LinearArgs& a) { run_linear<SuperTile<FormatQ8x<true>>>(a); }

}  // namespace kvasir::KVASIR_ISA
