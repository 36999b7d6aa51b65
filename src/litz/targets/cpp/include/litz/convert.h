// Conversions of one native register: what __builtin_convertvector does, where GCC does it well, and
// builtins where it would go lane by lane or in halves.
#pragma once

namespace litz {
namespace hw {

template <class T> struct to {};

template <class To, class R> LITZ_FN auto cvt(R a, to<To>) {
  return __builtin_convertvector(a, reg<To, lanes<R>>);
}

#define LITZ_CVT_(From, To, N, ...) \
  LITZ_FN reg<To, N> cvt(reg<From, N> a, to<To>) { return (reg<To, N>)(__VA_ARGS__); }
// To and its unsigned twin have the same bits.
#define LITZ_CVT2_(From, To, N, ...)    \
  LITZ_CVT_(From, To, N, __VA_ARGS__)   \
  LITZ_CVT_(From, u##To, N, __VA_ARGS__)
using ui8 = u8;
using ui16 = u16;
using ui32 = u32;
using ui64 = u64;

#if LITZ_GNU_X86 && defined(__AVX2__)
using q16 = reg<char, 16>;
using w8 = reg<short, 8>;
using d4 = reg<int, 4>;
// 8 bytes in the lower half of a register whose upper half is zero.
template <class R> LITZ_FN q16 widen8(R a) {
  return (q16)reg<long long, 2>{bitcast<long long>(a), 0};
}
LITZ_CVT2_(u8, i32, 8, __builtin_ia32_pmovzxbd256(widen8(a)))
LITZ_CVT2_(i8, i32, 8, __builtin_ia32_pmovsxbd256(widen8(a)))
LITZ_CVT2_(u16, i32, 8, __builtin_ia32_pmovzxwd256((w8)a))
LITZ_CVT2_(i16, i32, 8, __builtin_ia32_pmovsxwd256((w8)a))
LITZ_CVT2_(u32, i64, 4, __builtin_ia32_pmovzxdq256((d4)a))
LITZ_CVT2_(i32, i64, 4, __builtin_ia32_pmovsxdq256((d4)a))
LITZ_CVT_(i32, double, 4, __builtin_ia32_cvtdq2pd256((d4)a))
LITZ_CVT_(float, double, 4, __builtin_ia32_cvtps2pd256(a))
#if LITZ_KMASK
using z16 = reg<int, 16>;
using z8q = reg<long long, 8>;
LITZ_CVT2_(u8, i32, 16, __builtin_ia32_pmovzxbd512_mask((q16)a, z16{}, -1))
LITZ_CVT2_(i8, i32, 16, __builtin_ia32_pmovsxbd512_mask((q16)a, z16{}, -1))
LITZ_CVT2_(u16, i32, 16, __builtin_ia32_pmovzxwd512_mask((reg<short, 16>)a, z16{}, -1))
LITZ_CVT2_(i16, i32, 16, __builtin_ia32_pmovsxwd512_mask((reg<short, 16>)a, z16{}, -1))
LITZ_CVT2_(u32, i64, 8, __builtin_ia32_pmovzxdq512_mask((reg<int, 8>)a, z8q{}, -1))
LITZ_CVT2_(i32, i64, 8, __builtin_ia32_pmovsxdq512_mask((reg<int, 8>)a, z8q{}, -1))
LITZ_CVT_(i32, double, 8, __builtin_ia32_cvtdq2pd512_mask(a, reg<double, 8>{}, -1))
LITZ_CVT_(u32, double, 8,
          __builtin_ia32_cvtudq2pd512_mask((reg<int, 8>)a, reg<double, 8>{}, -1))
LITZ_CVT_(float, double, 8, __builtin_ia32_cvtps2pd512_mask(a, reg<double, 8>{}, -1, 4))
LITZ_CVT_(float, i64, 8, __builtin_ia32_cvttps2qq512_mask(a, z8q{}, -1, 4))
LITZ_CVT_(float, i64, 4, __builtin_ia32_cvttps2qq256_mask(a, reg<long long, 4>{}, -1))
#define LITZ_NARROW_(From)                                                                      \
  LITZ_CVT2_(From, i16, 16, __builtin_ia32_pmovdw512_mask((z16)a, reg<short, 16>{}, -1))        \
  LITZ_CVT2_(From, i8, 16, __builtin_ia32_pmovdb512_mask((z16)a, q16{}, -1))                    \
  LITZ_CVT2_(From, i16, 8, __builtin_ia32_pmovdw256_mask((reg<int, 8>)a, w8{}, -1))             \
  LITZ_CVT2_(From, i8, 8, half<0, reg<char, 8>>(                                                \
      __builtin_ia32_pmovdb256_mask((reg<int, 8>)a, q16{}, -1), count_to<8>()))
#define LITZ_NARROW8_(From)                                                                     \
  LITZ_CVT2_(From, i32, 8, __builtin_ia32_pmovqd512_mask((z8q)a, reg<int, 8>{}, -1))            \
  LITZ_CVT2_(From, i32, 4, __builtin_ia32_pmovqd256_mask((reg<long long, 4>)a, d4{}, -1))
LITZ_NARROW8_(i64)
LITZ_NARROW8_(u64)
#undef LITZ_NARROW8_
#elif LITZ_SHUFFLEVECTOR
// Bytes 0, 4, 8, 12 of each half, then the two halves' first words.
LITZ_FN reg<char, 8> low_bytes(reg<char, 32> a) {
  reg<char, 32> s = __builtin_ia32_pshufb256(
      a, reg<char, 32>{0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12,
                       0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12});
  reg<int, 8> w = (reg<int, 8>)s;
  return (reg<char, 8>)__builtin_shufflevector(w, w, 0, 4);
}
LITZ_FN reg<int, 4> low_words(reg<int, 8> w) {
  return __builtin_shufflevector(w, w, 0, 2, 4, 6);
}
#define LITZ_NARROW_(From)                                            \
  LITZ_CVT2_(From, i8, 8, low_bytes((reg<char, 32>)a))
LITZ_CVT2_(i64, i32, 4, low_words((reg<int, 8>)a))
LITZ_CVT2_(u64, i32, 4, low_words((reg<int, 8>)a))
#endif
#ifdef LITZ_NARROW_
LITZ_NARROW_(i32)
LITZ_NARROW_(u32)
#undef LITZ_NARROW_
#endif
#endif
#undef LITZ_CVT_
#undef LITZ_CVT2_

}  // namespace hw
}  // namespace litz
