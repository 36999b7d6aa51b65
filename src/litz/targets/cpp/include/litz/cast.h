// cast<To>(x): conversions between element types, lane for lane, and the 16-bit floats.
//
// Float to integer truncates; values out of range give what eager gives on x86: narrow types take
// the low bits of an i32 (u8 and u32: of an i64).
#pragma once

namespace litz {

// ---- 16-bit floats from and to float

namespace detail {
// bf16: round to nearest even on the bits; any nan becomes 0x7fc0.
template <class V, class U> LITZ_FN U bf16_round(V x) {  // the upper half of each lane is the result
  U b = bitcast<u32>(x);
  U r = b + ((b >> 16) & U(1u)) + U(0x7fffu);
  return where(x != x, U(0x7fc00000u), r);
}

// The lower halves of lanes whose upper halves are 0.
template <int N> LITZ_FN Vec<u16, N> narrowed(Vec<u32, N> x) {
#if LITZ_GNU_X86 && defined(__AVX2__) && !LITZ_KMASK
  if constexpr (N == 16) {
    auto both = __builtin_ia32_packusdw256((hw::reg<int, 8>)x.lo.v, (hw::reg<int, 8>)x.hi.v);
    return (hw::reg<u16, 16>)__builtin_ia32_permdi256((hw::reg<long long, 4>)both, 0xd8);
  } else if constexpr (N == 8) {
    auto a = (hw::reg<int, 4>)low(x).v, b = (hw::reg<int, 4>)high(x).v;
    return (hw::reg<u16, 8>)__builtin_ia32_packusdw128(a, b);
  }
#endif
  return cast<u16>(x);
}

// f16 without F16C, on the bits: normals by integer rounding, subnormals by a float addition that
// aligns them, both to nearest even.
template <class V, class U> LITZ_FN U f16_narrow(V x) {
  U b = bitcast<u32>(x);
  U sign = (b >> 16) & U(0x8000u);
  U a = b & U(0x7fffffffu);
  U normal = (a + ((a >> 13) & U(1u)) + U(0xfffu) - U(0x38000000u)) >> 13;
  U tiny = bitcast<u32>(bitcast<float>(a) + V(0.5f)) - U(0x3f000000u);
  U r = where(a < U(0x38800000u), tiny, normal);
  r = where(a >= U(0x477ff000u), U(0x7c00u), r);
  r = where(a > U(0x7f800000u), U(0x7e00u), r);
  return r | sign;
}
template <class V, class U> LITZ_FN V f16_widen(U h) {
  U sign = (h & U(0x8000u)) << 16;
  U a = (h & U(0x7fffu)) << 13;
  V normal = bitcast<float>(a) * V(0x1p112f);  // exact, subnormals too
  U special = a | U(0x7f800000u);
  return bitcast<float>(where(a >= U(0x0f800000u), special, bitcast<u32>(normal)) | sign);
}

#if LITZ_GNU_X86 && defined(__F16C__)
LITZ_FN hw::reg<u16, 8> to_f16(hw::reg<float, 8> x) {
  return (hw::reg<u16, 8>)__builtin_ia32_vcvtps2ph256(x, 8);
}
LITZ_FN hw::reg<u16, 4> to_f16(hw::reg<float, 4> x) {
  return hw::half<0, hw::reg<u16, 4>>((hw::reg<u16, 8>)__builtin_ia32_vcvtps2ph(x, 8),
                                      hw::count_to<4>());
}
LITZ_FN hw::reg<float, 8> from_f16(hw::reg<u16, 8> h) {
  return __builtin_ia32_vcvtph2ps256((hw::reg<short, 8>)h);
}
LITZ_FN hw::reg<float, 4> from_f16(hw::reg<u16, 4> h) {
  return __builtin_ia32_vcvtph2ps(
      (hw::reg<short, 8>)hw::concat<hw::reg<u16, 8>>(h, h, hw::count_to<8>()));
}
#if LITZ_KMASK
LITZ_FN hw::reg<u16, 16> to_f16(hw::reg<float, 16> x) {
  return (hw::reg<u16, 16>)__builtin_ia32_vcvtps2ph512_mask(x, 8, hw::reg<short, 16>{}, -1);
}
LITZ_FN hw::reg<float, 16> from_f16(hw::reg<u16, 16> h) {
  return __builtin_ia32_vcvtph2ps512_mask((hw::reg<short, 16>)h, hw::reg<float, 16>{}, -1, 4);
}
#endif
#define LITZ_F16C 1
#else
#define LITZ_F16C 0
#endif
}  // namespace detail

template <int N> LITZ_FN Vec<bf16, N> to_bf16(Vec<float, N> x) {
#if LITZ_KMASK && defined(__AVX512BF16__)
  // One instruction, but that it makes zeros of subnormal numbers.
  if constexpr (form<float, N> == SPLIT) {
    return join(to_bf16(x.lo), to_bf16(x.hi));
  } else if constexpr (N == 16) {
    bool normal = !__builtin_ia32_fpclassps512_mask(x.v, 0x20, (unsigned short)-1);
    if (LITZ_LIKELY(normal)) return Vec<u16, N>((hw::reg<u16, N>)__builtin_ia32_cvtneps2bf16_v16sf(x.v));
  }
#endif
  return Vec<bf16, N>(detail::narrowed(detail::bf16_round<Vec<float, N>, Vec<u32, N>>(x) >> 16));
}
template <int N> LITZ_FN Vec<float, N> to_float(Vec<bf16, N> x) {
  return bitcast<float>(cast<u32>(x.bits) << 16);
}
template <int N> LITZ_FN Vec<f16, N> to_f16(Vec<float, N> x) {
#if LITZ_F16C
  if constexpr (form<float, N> == SPLIT) return join(to_f16(x.lo), to_f16(x.hi));
  else if constexpr (N < 4) return low(to_f16(join(x, x)));
  else return Vec<f16, N>(detail::to_f16(x.v));
#else
  return Vec<f16, N>(cast<u16>(detail::f16_narrow<Vec<float, N>, Vec<u32, N>>(x)));
#endif
}
template <int N> LITZ_FN Vec<float, N> to_float(Vec<f16, N> x) {
#if LITZ_F16C
  if constexpr (form<float, N> == SPLIT) return {to_float(low(x)), to_float(high(x))};
  else if constexpr (N < 4) return low(to_float(join(x, x)));
  else return detail::from_f16(x.bits.v);
#else
  return detail::f16_widen<Vec<float, N>>(cast<u32>(x.bits));
#endif
}
LITZ_FN bf16 to_bf16(float x) {
  return {(u16)(detail::bf16_round<float, u32>(x) >> 16)};
}
LITZ_FN float to_float(bf16 x) { return bitcast<float>((u32)x.bits << 16); }
LITZ_FN f16 to_f16(float x) {
#if LITZ_F16C
  return to_f16(Vec<float, 4>(x))[0];
#else
  return {(u16)detail::f16_narrow<float, u32>(x)};
#endif
}
LITZ_FN float to_float(f16 x) {
#if LITZ_F16C
  return to_float(Vec<f16, 4>(x))[0];
#else
  return detail::f16_widen<float, u32>(x.bits);
#endif
}

// ---- vectors

namespace detail {
// Of an integer that comes from a float and becomes one again GCC makes trunc, which keeps -0.0 and
// what no integer holds.  Behind these it does not see where an integer, or a register, comes from.
template <class T> LITZ_FN T integer(T a) {
  __asm__("" : "+r"(a));
  return a;
}
template <class R> LITZ_FN R integers(R a) {
#if defined(__aarch64__)
  __asm__("" : "+w"(a));
#elif defined(__x86_64__)
  if constexpr (sizeof(R) >= 16) __asm__("" : "+x"(a));
#endif
  return a;
}
// The type to convert through on the way from a float to an integer To.
template <class To, class From> struct through_ { using type = i32; };
template <class From> struct through_<i64, From> { using type = i64; };
template <class From> struct through_<u32, From> { using type = i64; };
template <> struct through_<u8, double> { using type = i64; };  // of float, i32 gives the same

template <class To, class From, int N> LITZ_FN Vec<To, N> convert(Vec<From, N> a) {
  if constexpr ((sizeof(From) < 4 && sizeof(To) == 8) || (sizeof(From) == 8 && sizeof(To) < 4)) {
    return convert<To>(convert<i32>(a));  // in steps that the hardware has
  } else if constexpr (form<From, N> == SPLIT || form<To, N> == SPLIT) {
    return join(convert<To>(low(a)), convert<To>(high(a)));
  } else if constexpr (sizeof(To) == 2 && sizeof(From) == 1) {
    return convert<To>(convert<i32>(a));
  } else if constexpr (is_float<From> && !is_float<To>) {
    return integers(hw::cvt(a.v, hw::to<To>()));
  } else {
    return hw::cvt(a.v, hw::to<To>());
  }
}
// What a scalar conversion to unsigned 64 bits does on x86: negative values wrap.
template <class From, int N> LITZ_FN Vec<u64, N> to_u64(Vec<From, N> x) {
  using V = Vec<From, N>;
  Vec<bool, N> big = x >= V(From(0x1p63));
  Vec<i64, N> r = convert<i64>(where(big, x - V(From(0x1p63)), x));
  return bitcast<u64>(where(big, r ^ Vec<i64, N>((i64)((u64)1 << 63)), r));
}
}  // namespace detail

template <class To, class From, int N> LITZ_FN Vec<To, N> cast(Vec<From, N> a) {
  if constexpr (is_same<To, From>) {
    return a;
  } else if constexpr (is_same<To, bf16>) {
    return to_bf16(cast<float>(a));
  } else if constexpr (is_same<To, f16>) {
    return to_f16(cast<float>(a));
  } else if constexpr (is_half<From>) {
    return cast<To>(to_float(a));
  } else if constexpr (is_same<To, bool>) {
    return a != Vec<From, N>(From(0));
  } else if constexpr (is_same<From, bool>) {
    return where(a, Vec<To, N>(To(1)), Vec<To, N>(To(0)));
  } else if constexpr (is_float<From> && !is_float<To>) {
    if constexpr (is_same<To, u64>) {
      return detail::to_u64(a);
    } else {
      using T = typename detail::through_<To, From>::type;
      return detail::convert<To>(detail::convert<T>(a));
    }
  } else if constexpr (is_float<To> && sizeof(From) < 4) {
    return detail::convert<To>(detail::convert<i32>(a));
  } else {
    return detail::convert<To>(a);
  }
}

// ---- scalars

template <class To, class From> LITZ_FN To cast(From a) {
  if constexpr (is_same<To, From>) return a;
  else if constexpr (is_same<To, bf16>) return to_bf16(cast<float>(a));
  else if constexpr (is_same<To, f16>) return to_f16(cast<float>(a));
  else if constexpr (is_half<From>) return cast<To>(to_float(a));
  else if constexpr (is_same<To, bool>) return a != From(0);
  else if constexpr (is_float<From> && is_same<To, u64>)
    return a >= From(0x1p63) ? (u64)(i64)(a - From(0x1p63)) ^ (u64)1 << 63
                             : (u64)detail::integer((i64)a);
  else if constexpr (is_float<From> && !is_float<To>)
    return (To)detail::integer((typename detail::through_<To, From>::type)a);
  else return (To)a;
}

// cut<bf16>(x) of floats that are such values.
template <class H, int N> LITZ_FN Vec<H, N> cut(Vec<float, N> x) {
  return Vec<H, N>(detail::narrowed(bitcast<u32>(x) >> 16));
}
template <class H> LITZ_FN H cut(float x) { return {(u16)(bitcast<u32>(x) >> 16)}; }

// round_to<H>(x): x rounded to the values of H, kept in its own type.
template <class H, class T, int N> LITZ_FN Vec<T, N> round_to(Vec<T, N> x) {
  if constexpr (is_same<H, bf16> && is_same<T, float>) {
    return bitcast<float>(detail::bf16_round<Vec<float, N>, Vec<u32, N>>(x) &
                          Vec<u32, N>(0xffff0000u));
  } else {
    return cast<T>(cast<H>(x));
  }
}
template <class H, class T> LITZ_FN T round_to(T x) { return cast<T>(cast<H>(x)); }

}  // namespace litz
