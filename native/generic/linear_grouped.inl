// Linears of four- and eight-bit codes with a scale for 64 k or more, or one an output (layouts.h: qg, q4c,
// q8c), over activation blocks of 64 or more. Per column and row: a dot is of 64 k, an exact integer; with a
// scale for each group blk = fma(dot, scale, blk) over the dots of an activation block, with one an output
// blk is their sum; total = fma(blk, d, total) over the blocks, times the output's scale in the end. Other
// blocks are the compact linears' (linear_compact.inl). Include after words.inl and linear_int.inl; a level
// brings, as span_dots.inl does,
//   kSpanRows: rows that meet a panel together;
//   span_dots<MR, NT, Bits>(read, a, offset, start, dots): as int_dots, over two groups, whose bytes are at
//   read(0) and, once those are used, read(1).
#pragma once
#include "generic/code_zeros.inl"
#include "generic/linear_panel.inl"

namespace kvasir::KVASIR_ISA {

constexpr int kSpan = 2 * kGroup;  // k of a dot

// Codes of Bits in a layout: where a group and the numbers that it shares with others lie.
template <Layout L, int Bits>
struct Grouped {
  static constexpr LayoutSize kSize = kLayoutSizes[int(L)];
  static constexpr bool kPerOutput = kSize.front != 0;
  static constexpr int kHead = kPerOutput ? 0 : 48, kGroups = kSize.elements / kGroup, kBytes = 64 * Bits;
  // bytes of four bits are below 64, or of -32 … 32 where the level wants them centred
  static constexpr int kBits = Bits == 4 ? 6 : 8;
  static constexpr int kZero = Bits == 8 ? kQ8Zero : kCentred ? 0 : 32;

  static int64_t bytes(int64_t K) { return layout_bytes(L, K); }
  static const uint8_t* numbers(const uint8_t* tile, int64_t g) {
    return kPerOutput ? tile : tile + g / kGroups * kSize.bytes;
  }
  static const uint8_t* codes(const uint8_t* tile, int64_t g) {
    return tile + kSize.front + g / kGroups * kSize.bytes + kHead + g % kGroups * kBytes;
  }
  static __attribute__((always_inline)) inline vf scale(const uint8_t* at) {
    if constexpr (kPerOutput)
      return load(reinterpret_cast<const float*>(at));
    else
      return split_scale(at, load_u8(at + 32));
  }
  static __attribute__((always_inline)) inline void unpack(const uint8_t* at, const uint8_t* p, Unpacked& u) {
    if constexpr (Bits == 4)
      four_bit_codes(p, zero_offset<kZero>(load_u8(at + (kPerOutput ? 64 : 32))), u);
    else
      unpack8(p, u);
  }
};

// Of span `span`; read(half) has the bytes of its groups.
template <class F, int MR, int NT, class Read>
KVASIR_INLINE void dots_of(const RowsAt<MR>& x, int64_t span, const Read& read, vf* dots) {
  int32_t start[MR];
  for (int i = 0; i < MR; i++) {
    const int32_t* sums = x.sums[i] + 4 * span;
    start[i] = int32_t(-uint32_t(F::kZero) * (uint32_t(sums[0]) + uint32_t(sums[2])));
  }
  span_dots<MR, NT, F::kBits>(read, x.q, span * kSpan, F::kZero ? start : nullptr, dots);
}

// What a span's dots add to an activation block; scales: of NT tiles.
template <class F, int MR, int NT>
KVASIR_INLINE void add_dots(const vf* dot, const vf* scales, vf* blk) {
  for (int t = 0; t < NT; t++)
    for (int i = 0; i < MR; i++) {
      const int n = t * MR + i;
      blk[n] = F::kPerOutput ? add(blk[n], dot[n]) : fma(dot[n], scales[t], blk[n]);
    }
}

// What dots_of and add_dots ask of codes.
template <int Bits, int Zero, bool PerOutput>
struct Spans {
  static constexpr int kBits = Bits, kZero = Zero;
  static constexpr bool kPerOutput = PerOutput;
};
template <class F>
using SpansOf = Spans<kDotsAskBits ? F::kBits : 8, F::kZero, F::kPerOutput>;

// F: Spans of what is unpacked, as Panel's Dots.
template <class F, int NT>
struct GroupedPanel {
  Unpacked groups[kPanelGroups][NT];
  vf scales[kPanelGroups / 2][NT];
  vf totals[kPanelRows][NT];

  const LinearArgs& a;
  const int64_t tile, m0, n_rows;
  const RowsAt<kPanelRows> x;

  inline __attribute__((always_inline)) GroupedPanel(const LinearArgs& args, int64_t first_tile, int64_t m)
      : a(args),
        tile(first_tile),
        m0(m),
        n_rows(args.m1 - m < kPanelRows ? args.m1 - m : kPanelRows),
        x(panel_inputs(args, m, n_rows)) {}

  // Codes: of groups [g0, g1) of the tiles at w.
  template <class Codes>
  inline __attribute__((always_inline)) void read(const uint8_t* w, int64_t g0, int64_t g1) {
    for (int t = 0; t < NT; t++) {
      const uint8_t* at = w + t * Codes::bytes(a.K);
      for (int64_t g = g0; g < g1; g++) {
        Codes::unpack(Codes::numbers(at, g), Codes::codes(at, g), groups[g - g0][t]);
        if (g % 2 == 0) scales[(g - g0) / 2][t] = Codes::scale(Codes::numbers(at, g));
      }
    }
  }

  // As Panel::run.
  __attribute__((noinline)) void run(int64_t g0, int64_t g1, Coming<NT> coming) {
    const int64_t share = (coming.end - coming.at) * kSpanRows / n_rows + 1;
    int64_t m = 0;
    for (; m + kSpanRows <= n_rows; m += kSpanRows) {
      coming.fetch(share);
      rows<kSpanRows>(m, g0, g1);
    }
    for (; m < n_rows; m++) rows<1>(m, g0, g1);
  }

  template <int MR>
  inline __attribute__((always_inline)) void rows(int64_t m, int64_t g0, int64_t g1) {
    const RowsAt<MR> at(x, m);
    const int64_t per_block = a.x->block / kSpan;
    vf total[MR * NT];
    for (int i = 0; i < MR; i++)
      for (int t = 0; t < NT; t++) total[t * MR + i] = g0 == 0 ? zero() : totals[m + i][t];
    for (int64_t span = g0 / 2, b = span / per_block; span < g1 / 2; b++) {
      vf blk[MR * NT];
      for (int n = 0; n < MR * NT; n++) blk[n] = zero();
      for (const int64_t end = span + per_block; span < end; span++) {
        const int64_t in_panel = span - g0 / 2;
        vf dot[MR * NT];
        const auto read = [&](int half)
                              __attribute__((always_inline)) { return groups[2 * in_panel + half]; };
        dots_of<F, MR, NT>(at, span, read, dot);
        add_dots<F, MR, NT>(dot, scales[in_panel], blk);
      }
      for (int i = 0; i < MR; i++) {
        const vf d = set1(at.scales[i][b]);
        for (int t = 0; t < NT; t++) total[t * MR + i] = fma(blk[t * MR + i], d, total[t * MR + i]);
      }
    }
    if (g1 * kGroup < a.K) {
      for (int i = 0; i < MR; i++)
        for (int t = 0; t < NT; t++) totals[m + i][t] = total[t * MR + i];
      return;
    }
    if constexpr (F::kPerOutput)
      for (int n = 0; n < MR * NT; n++) total[n] = mul(total[n], scales[0][n / MR]);
    if (!store_plain<MR, NT>(a, tile, m0 + m, total)) finish<MR, NT>(a, tile, m0 + m, total);
  }
};

template <class F>
struct GroupedTile {
  static constexpr int kRows = kIntRows, kPairedRows = kSpanRows < 4 ? 4 : kSpanRows;
  static constexpr bool kEight = true;
  static int64_t bytes(int64_t K) { return F::bytes(K); }

  template <int MR, int NT>
  static __attribute__((always_inline)) inline void rows(const uint8_t* w, const LinearArgs& a,
                                                         const int64_t* r, vf* total) {
    const RowsAt<MR> x(a, r);
    const int64_t stride = bytes(a.K), per_block = a.x->block / kSpan, n_blocks = a.K / a.x->block;
    for (int n = 0; n < MR * NT; n++) total[n] = zero();
    vf scales[NT];
    for (int64_t b = 0, span = 0; b < n_blocks; b++) {
      vf blk[MR * NT];
      for (int n = 0; n < MR * NT; n++) blk[n] = zero();
      for (const int64_t end = span + per_block; span < end; span++) {
        Unpacked u[NT];
        const auto read = [&](int half) __attribute__((always_inline)) {
          const uint8_t* p = F::codes(w, 2 * span + half);
          for (int t = 0; t < NT; t++) {
            fetch<NT, F::kBytes>(w, p, stride, t, a.shape.ahead);
            F::unpack(F::numbers(w, 2 * span) + t * stride, p + t * stride, u[t]);
          }
          return &u[0];
        };
        vf dot[MR * NT];
        dots_of<F, MR, NT>(x, span, read, dot);
        if constexpr (!F::kPerOutput)
          for (int t = 0; t < NT; t++) scales[t] = F::scale(F::numbers(w, 2 * span) + t * stride);
        add_dots<F, MR, NT>(dot, scales, blk);
      }
      for (int i = 0; i < MR; i++) {
        const vf d = set1(x.scales[i][b]);
        for (int t = 0; t < NT; t++) total[t * MR + i] = fma(blk[t * MR + i], d, total[t * MR + i]);
      }
    }
    if constexpr (F::kPerOutput)
      for (int n = 0; n < MR * NT; n++) total[n] = mul(total[n], F::scale(w + n / MR * stride));
  }

  // As panel_rows (linear_panel.inl).
  template <int NT>
  static bool many(const LinearArgs& a, int64_t tile) {
    if (!kPanels || a.x->block > kPanelGroups * kGroup) return false;
    const int64_t groups = a.K / kGroup, step = panel_step(a), stride = bytes(a.K);
    const uint8_t* w = a.w + tile * stride;
    for (int64_t m0 = a.m0; m0 < a.m1; m0 += kPanelRows) {
      alignas(64) GroupedPanel<SpansOf<F>, NT> panel(a, tile, m0);
      for (int64_t g = 0; g < groups; g += step) {
        const int64_t end = g + step < groups ? g + step : groups;
        const uint8_t* next = end < groups ? w + stride * end / groups : w + NT * stride;
        panel.template read<F>(w, g, end);
        panel.run(g, end, {next, next + stride * step / groups, stride});
      }
    }
    return true;
  }
};

// Groups of 32: as Q8_0, whose codes become bytes less their zeros.
template <Layout L, int Bits>
struct FormatGrouped32 {
  using Codes = Grouped<L, Bits>;
  static constexpr Layout kLayout = L;
  static constexpr int kSuper = 32, kHead = 0, kBytes = Codes::kSize.bytes, kRuns = 1;
  static constexpr int kBits = Codes::kBits, kZero = Codes::kZero;
  static constexpr bool kMins = false;
  static __attribute__((always_inline)) inline void unpack(const uint8_t* p, Unpacked& u) {
    Codes::unpack(p, p + Codes::kHead, u);
  }
  static __attribute__((always_inline)) inline void scales(const uint8_t*, const uint8_t* p, Scales& s) {
    s.scale[0] = Codes::scale(p);
  }
};

template <Layout L, int Bits>
void linear_grouped(const LinearArgs& a) {
  if constexpr (kLayoutSizes[int(L)].elements == 32 && kLayoutSizes[int(L)].front == 0)
    run_linear<IntTile<FormatGrouped32<L, Bits>>>(a);
  else
    run_linear<GroupedTile<Grouped<L, Bits>>>(a);
}

// Null: the layout's readers are all that there is.
KVASIR_INLINE auto grouped_linear(const LinearArgs& a) -> void (*)(const LinearArgs&) {
  if (a.layout == Layout::qg4_32) return linear_grouped<Layout::qg4_32, 4>;
  if (a.layout == Layout::qg8_32) return linear_grouped<Layout::qg8_32, 8>;
  if (a.x->block % kSpan) return nullptr;
  switch (a.layout) {
    case Layout::qg4_64:
      return linear_grouped<Layout::qg4_64, 4>;
    case Layout::qg4_128:
      return linear_grouped<Layout::qg4_128, 4>;
    case Layout::qg8_64:
      return linear_grouped<Layout::qg8_64, 8>;
    case Layout::qg8_128:
      return linear_grouped<Layout::qg8_128, 8>;
    case Layout::q4c:
      return linear_grouped<Layout::q4c, 4>;
    case Layout::q8c:
      return linear_grouped<Layout::q8c, 8>;
    default:
      return nullptr;
  }
}

}  // namespace kvasir::KVASIR_ISA
