// Linears of the scaled layouts (layouts.h), for rows of bf16. A block of kBlock elements of NT tiles becomes
// pairs of bf16 in the first cache, for any number of rows. Per column and row: acc sums a block as
// linear_bf16.inl sums pairs, then total = fma(acc, scale, total), blocks ascending. Include after
// linear.inl; beside bf16_pair (linear_bf16.inl) a level brings kFloatRows and what words.inl has.
#pragma once
#include "generic/level.inl"
#include "generic/linear.inl"

namespace kvasir::KVASIR_ISA {

constexpr int kScaledRows = 64;

// e4m3: a byte of each column for each k. The 256th part of its value is a bf16; the scale makes up for it.
template <Layout L>
struct ScaledF8 {
  static constexpr Layout kLayout = L;
  static constexpr int kBlock = kLayoutSizes[int(L)].elements, kHead = L == Layout::f8c ? 0 : 64;
  static constexpr float kUnit = 256;
  KVASIR_INLINE vi pair(const uint8_t* p, int i) {
    const vi even = bits(load_e4m3_256th(p + 32 * i)), odd = bits(load_e4m3_256th(p + 32 * i + 16));
    return ori(shr<16>(even), andi(odd, set1i(int32_t(0xffff0000))));
  }
};

// Bytes of the bf16 levels of a table of 16.
struct LevelBytes {
  int8_t low[16], high[16];
  constexpr explicit LevelBytes(const float (&values)[16]) : low(), high() {
    for (int i = 0; i < 16; i++) {
      low[i] = int8_t(uint8_t(bf16_of(values[i])));
      high[i] = int8_t(uint8_t(bf16_of(values[i]) >> 8));
    }
  }
};
constexpr LevelBytes kNf4Bytes(kNf4Values), kFp4bBytes(kFp4bValues);

template <Layout L>
struct ScaledT4 {
  static constexpr Layout kLayout = L;
  static constexpr int kBlock = 64, kHead = 64;
  static constexpr float kUnit = 1;
  KVASIR_INLINE vi pair(const uint8_t* p, int i) {
    constexpr const LevelBytes& levels = L == Layout::nf4 ? kNf4Bytes : kFp4bBytes;
    const vi word = loadi(reinterpret_cast<const int32_t*>(p + 64 * (i / 4)));
    const vi two = i % 4 == 0 ? word : i % 4 == 1 ? shr<8>(word) : i % 4 == 2 ? shr<16>(word) : shr<24>(word);
    // the code of the even k in bytes 0 and 1, of the odd one in 2 and 3
    const vi codes = ori(andi(two, set1i(15)), shl<12>(andi(two, set1i(0xf0))));
    const vi both = ori(codes, shl<8>(codes));
    return ori(andi(shuffle16(levels.low, both), set1i(0x00ff00ff)),
               andi(shuffle16(levels.high, both), set1i(int32_t(0xff00ff00))));
  }
};

template <class F, int NT>
struct ScaledPanel {
  static constexpr LayoutSize kSize = kLayoutSizes[int(F::kLayout)];
  static constexpr int kPairs = F::kBlock / 2;
  vi pairs[kPairs][NT];
  vf scales[NT];
  vf totals[kScaledRows][NT];

  // Block b of tiles `stride` apart.
  inline __attribute__((always_inline)) void read(const uint8_t* w, int64_t stride, int64_t b) {
    for (int t = 0; t < NT; t++) {
      const uint8_t* tile = w + t * stride;
      const uint8_t* p = tile + kSize.front + b * kSize.bytes;
      for (int line = 0; line < kSize.bytes; line += 64) __builtin_prefetch(p + 2048 + line, 0, 3);
      const uint8_t* head = kSize.front ? tile : p;
      scales[t] = mul(load(reinterpret_cast<const float*>(head)), set1(F::kUnit));
#pragma GCC unroll 8
      for (int i = 0; i < kPairs; i++) pairs[i][t] = F::pair(p + F::kHead, i);
    }
  }

  // Rows m … m + MR, whose elements of the block begin at x.
  template <int MR>
  inline __attribute__((always_inline)) void add_block(const uint16_t* const* x, int64_t m) {
    vf acc[MR * NT];
    for (int n = 0; n < MR * NT; n++) acc[n] = zero();
    for (int i = 0; i < kPairs; i++)
      for (int r = 0; r < MR; r++) {
        int32_t value;
        __builtin_memcpy(&value, x[m + r] + 2 * i, 4);
        for (int t = 0; t < NT; t++) acc[t * MR + r] = bf16_pair(acc[t * MR + r], pairs[i][t], value);
      }
    for (int r = 0; r < MR; r++)
      for (int t = 0; t < NT; t++) totals[m + r][t] = fma(acc[t * MR + r], scales[t], totals[m + r][t]);
  }
};

template <class F, int NT>
void scaled_tiles(const LinearArgs& a, int64_t tile) {
  const int64_t stride = layout_bytes(F::kLayout, a.K);
  for (int64_t m0 = a.m0; m0 < a.m1; m0 += kScaledRows) {
    const int64_t n = a.m1 - m0 < kScaledRows ? a.m1 - m0 : kScaledRows;
    int64_t r[kScaledRows];
    row_indices(a, m0, int(n), r);
    alignas(64) ScaledPanel<F, NT> panel;
    const uint16_t* x[kScaledRows];
    for (int64_t m = 0; m < n; m++) {
      x[m] = static_cast<const uint16_t*>(a.x->data) + r[m] * a.x->ld;
      for (int t = 0; t < NT; t++) panel.totals[m][t] = zero();
    }
    for (int64_t b = 0; b < a.K / F::kBlock; b++) {
      panel.read(a.w + tile * stride, stride, b);
      int64_t m = 0;
      for (; m + kFloatRows <= n; m += kFloatRows) panel.template add_block<kFloatRows>(x, m);
      for (; m < n; m++) panel.template add_block<1>(x, m);
      for (m = 0; m < n; m++) x[m] += F::kBlock;
    }
    for (int64_t m = 0; m < n; m++) finish<1, NT>(a, tile, m0 + m, panel.totals[m]);
  }
}

template <class F>
void linear_of(const LinearArgs& a) {
  int64_t tile = a.tile0;
  for (; tile + 2 <= a.tile1; tile += 2) scaled_tiles<F, 2>(a, tile);
  if (tile < a.tile1) scaled_tiles<F, 1>(a, tile);
}

void linear_scaled(const LinearArgs& a) {
  constexpr void (*all[])(const LinearArgs&) = {
      linear_of<ScaledF8<Layout::f8c>>, linear_of<ScaledF8<Layout::f8_32>>,
      linear_of<ScaledF8<Layout::f8_128>>, linear_of<ScaledT4<Layout::nf4>>,
      linear_of<ScaledT4<Layout::fp4>>};
  static_assert(sizeof(all) / sizeof(all[0]) == kLayouts - int(Layout::f8c));
  all[int(a.layout) - int(Layout::f8c)](a);
}

void fill_scaled_linears(Kernels& k) {
  for (int layout = int(Layout::f8c); layout < kLayouts; layout++)
    k.linear[int(Form::usual)][layout] = linear_scaled;
}

}  // namespace kvasir::KVASIR_ISA
