// How the integer layouts are read (kernels.h, Layout). A format has blocks of kSuper elements: kHead bytes,
// then kSuper / 32 groups of kBytes, all for 16 columns. A group has one scale (and min) per column, or two
// runs of 16 elements each with their own. Beside what linear_int.inl asks for, a level brings
//   unpack5<Zero>(low, high, Unpacked&), unpack6<Zero> likewise, unpack_table(const uint8_t*, Unpacked&):
//   codes of IQ4_NL; kQ8Zero, kCentred: whether unpack8 and unpack_table leave 128 to be subtracted, and
//   whether unpack5 and unpack6 subtract Zero.
#pragma once
#include "kernels.h"

namespace kvasir::KVASIR_ISA {

KVASIR_INLINE vf load_half(const uint8_t* p) { return load_f16(reinterpret_cast<const uint16_t*>(p)); }
KVASIR_INLINE vf load_u8f(const uint8_t* p) { return to_float(load_u8(p)); }
KVASIR_INLINE vf load_i8f(const uint8_t* p) { return sub(load_u8f(p), set1(128)); }  // stored + 128

// Of one group and tile: a run of 32, or two of 16.
struct Scales {
  vf scale[2], min[2];
};

struct FormatQ4m {
  static constexpr Layout kLayout = Layout::q4m;
  static constexpr int kSuper = 32, kHead = 0, kBytes = 320, kRuns = 1, kBits = 4, kZero = 0;
  static constexpr bool kMins = true;
  static __attribute__((always_inline)) inline void unpack(const uint8_t* p, Unpacked& u) { unpack4(p, u); }
  static __attribute__((always_inline)) inline void scales(const uint8_t*, const uint8_t* p, Scales& s) {
    s.scale[0] = load_half(p + 256);
    s.min[0] = load_half(p + 288);
  }
};
struct FormatQ4z {
  static constexpr Layout kLayout = Layout::q4z;
  static constexpr int kSuper = 32, kHead = 0, kBytes = 288, kRuns = 1, kBits = 4, kZero = 8;
  static constexpr bool kMins = false;
  static __attribute__((always_inline)) inline void unpack(const uint8_t* p, Unpacked& u) { unpack4(p, u); }
  static __attribute__((always_inline)) inline void scales(const uint8_t*, const uint8_t* p, Scales& s) {
    s.scale[0] = load_half(p + 256);
  }
};
struct FormatQ8 {
  static constexpr Layout kLayout = Layout::q8;
  static constexpr int kSuper = 32, kHead = 0, kBytes = 544, kRuns = 1, kBits = 8, kZero = kQ8Zero;
  static constexpr bool kMins = false;
  static __attribute__((always_inline)) inline void unpack(const uint8_t* p, Unpacked& u) { unpack8(p, u); }
  static __attribute__((always_inline)) inline void scales(const uint8_t*, const uint8_t* p, Scales& s) {
    s.scale[0] = load_half(p + 512);
  }
};
struct FormatQ4k {
  static constexpr Layout kLayout = Layout::q4k;
  static constexpr int kSuper = 256, kHead = 64, kBytes = 288, kRuns = 1, kBits = 4, kZero = 0;
  static constexpr bool kMins = true;
  static __attribute__((always_inline)) inline void unpack(const uint8_t* p, Unpacked& u) { unpack4(p, u); }
  static __attribute__((always_inline)) inline void scales(const uint8_t* head, const uint8_t* p, Scales& s) {
    s.scale[0] = mul(load_half(head), load_u8f(p + 256));
    s.min[0] = mul(load_half(head + 32), load_u8f(p + 272));
  }
};
struct FormatQ5k {
  static constexpr Layout kLayout = Layout::q5k;
  static constexpr int kSuper = 256, kHead = 64, kBytes = 352, kRuns = 1, kBits = 6, kZero = 0;
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
  static constexpr Layout kLayout = Layout::q6k;
  static constexpr int kSuper = 256, kHead = 32, kBytes = 416, kRuns = 2, kBits = 6,
                       kZero = kCentred ? 0 : 32;
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
  static constexpr Layout kLayout = Layout::q5z;
  static constexpr int kSuper = 32, kHead = 0, kBytes = 352, kRuns = 1, kBits = 6, kZero = kCentred ? 0 : 16;
  static constexpr bool kMins = false;
  static __attribute__((always_inline)) inline void unpack(const uint8_t* p, Unpacked& u) {
    unpack5<16>(p, p + 256, u);
  }
  static __attribute__((always_inline)) inline void scales(const uint8_t*, const uint8_t* p, Scales& s) {
    s.scale[0] = load_half(p + 320);
  }
};
struct FormatQ5m {
  static constexpr Layout kLayout = Layout::q5m;
  static constexpr int kSuper = 32, kHead = 0, kBytes = 384, kRuns = 1, kBits = 6, kZero = 0;
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
  static constexpr Layout kLayout = Layout::iq4;
  static constexpr int kSuper = 32, kHead = 0, kBytes = 288, kRuns = 1, kBits = 8, kZero = kQ8Zero;
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
  static constexpr Layout kLayout = Mins ? Layout::q8m : Layout::q8s;
  static constexpr int kSuper = 32, kHead = 0, kBytes = Mins ? 768 : 640, kRuns = 2, kBits = 8,
                       kZero = kQ8Zero;
  static constexpr bool kMins = Mins;
  static __attribute__((always_inline)) inline void unpack(const uint8_t* p, Unpacked& u) { unpack8(p, u); }
  static __attribute__((always_inline)) inline void scales(const uint8_t*, const uint8_t* p, Scales& s) {
    const float* f = reinterpret_cast<const float*>(p + 512);
    for (int i = 0; i < 2; i++) s.scale[i] = load(f + 16 * i);
    if constexpr (Mins)
      for (int i = 0; i < 2; i++) s.min[i] = load(f + 32 + 16 * i);
  }
};

}  // namespace kvasir::KVASIR_ISA
