// Litz kernel support: scalar types, ISA selection, register-level operations.
//
// Nothing here includes a standard header: parsing those costs more than compiling a kernel.
// Hardware operations are GCC builtins under ISA macros; every one has a portable form.
#pragma once

#define LITZ_FN inline __attribute__((always_inline))
#define LITZ_CALLED __attribute__((noinline))
#define LITZ_LAMBDA __attribute__((always_inline))
#define LITZ_SLOW static __attribute__((noinline, cold, unused))
#define LITZ_UNROLL _Pragma("GCC unroll 32")
#define LITZ_LIKELY(x) __builtin_expect(!!(x), 1)
#define LITZ_UNLIKELY(x) __builtin_expect(!!(x), 0)

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define LITZ_GNU_X86 1
#else
#define LITZ_GNU_X86 0
#endif
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define LITZ_AVX512 1
#define LITZ_REG 64
#elif defined(__AVX2__) && defined(__FMA__)
#define LITZ_AVX512 0
#define LITZ_REG 32
#else
#define LITZ_AVX512 0
#define LITZ_REG 16
#endif
// Masks are k-registers only where GCC's masked builtins exist; elsewhere i32 lanes of 0 / -1.
#define LITZ_KMASK (LITZ_AVX512 && LITZ_GNU_X86)
#if defined(__FMA__) || defined(__FP_FAST_FMAF) || defined(__aarch64__)
#define LITZ_FMA 1
#else
#define LITZ_FMA 0
#endif
// Clang has whole-register forms of these functions; GCC has them as machine builtins.
#if defined(__clang__) && defined(__has_builtin)
#if __has_builtin(__builtin_elementwise_fma) && __has_builtin(__builtin_elementwise_sqrt)
#define LITZ_ELEMENTWISE 1
#endif
#endif
#ifndef LITZ_ELEMENTWISE
#define LITZ_ELEMENTWISE 0
#endif
// __builtin_shufflevector arrived in GCC 12; before that values are split through memory.
#if defined(__clang__) || __GNUC__ >= 12
#define LITZ_SHUFFLEVECTOR 1
#else
#define LITZ_SHUFFLEVECTOR 0
#endif

namespace litz {

using i8 = signed char;
using u8 = unsigned char;
using i16 = short;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = __INT64_TYPE__;
using u64 = __UINT64_TYPE__;
using f32 = float;
using f64 = double;
using int8_t = i8;
using uint8_t = u8;
using int16_t = i16;
using uint16_t = u16;
using int32_t = i32;
using uint32_t = u32;
using int64_t = i64;
using uint64_t = u64;

struct bf16 {
  u16 bits;
};
struct f16 {
  u16 bits;
};

template <class T> struct id_ {
  using type = T;
};
// Keeps a parameter out of template deduction, so that constants convert to the vector's type.
template <class T> using same = typename id_<T>::type;

template <class A, class B> inline constexpr bool is_same = false;
template <class A> inline constexpr bool is_same<A, A> = true;

template <class T> inline constexpr bool is_float = false;
template <> inline constexpr bool is_float<float> = true;
template <> inline constexpr bool is_float<double> = true;
template <class T> inline constexpr bool is_half = false;
template <> inline constexpr bool is_half<bf16> = true;
template <> inline constexpr bool is_half<f16> = true;
template <class T> inline constexpr bool is_signed = T(-1) < T(0);

template <int Bytes> struct uint_;
template <> struct uint_<1> { using type = u8; };
template <> struct uint_<2> { using type = u16; };
template <> struct uint_<4> { using type = u32; };
template <> struct uint_<8> { using type = u64; };
template <int Bytes> struct int_;
template <> struct int_<1> { using type = i8; };
template <> struct int_<2> { using type = i16; };
template <> struct int_<4> { using type = i32; };
template <> struct int_<8> { using type = i64; };
// The integer types as wide as T.
template <class T> using uint_of = typename uint_<sizeof(T)>::type;
template <class T> using int_of = typename int_<sizeof(T)>::type;
// The type in which + - * of T run: unsigned for integers, so that overflow wraps and is defined.
template <class T, bool Float = is_float<T>> struct wrap_ { using type = uint_of<T>; };
template <class T> struct wrap_<T, true> { using type = T; };

inline constexpr float inf32 = __builtin_inff();
inline constexpr float nan32 = __builtin_nanf("");
inline constexpr double inf64 = __builtin_inf();
inline constexpr double nan64 = __builtin_nan("");

// Predicates as AVX immediates: the float form (quiet, ordered but for ne) and the integer form.
namespace pred {
struct eq { enum { F = 0, I = 0 }; };
struct ne { enum { F = 4, I = 4 }; };
struct lt { enum { F = 17, I = 1 }; };
struct le { enum { F = 18, I = 2 }; };
struct gt { enum { F = 30, I = 6 }; };
struct ge { enum { F = 29, I = 5 }; };
}  // namespace pred

enum Round { HALF_EVEN = 8, FLOOR = 9, CEIL = 10, TRUNC = 11 };  // AVX immediates

// Operations on one native register.
namespace hw {

template <class T, int N> struct native {
  typedef T type __attribute__((vector_size(sizeof(T) * N)));
};
template <class T, int N> using reg = typename native<T, N>::type;

// The sequence 0, 1, .. N-1 as template arguments, for shuffles.
template <int... I> struct seq {};
#if defined(__clang__)
template <class, int... I> struct seq_from_ { using type = seq<I...>; };
template <int N> using count_to = typename __make_integer_seq<seq_from_, int, N>::type;
#else
template <int N> struct count_to_ { using type = seq<__integer_pack(N)...>; };
template <int N> using count_to = typename count_to_<N>::type;
#endif

// Half of a register's lanes from lane At on; two registers side by side.
#if LITZ_SHUFFLEVECTOR
template <int At, class H, class R, int... I> LITZ_FN H half(R a, seq<I...>) {
  return __builtin_shufflevector(a, a, (I + At)...);
}
template <class R, class H, int... I> LITZ_FN R concat(H a, H b, seq<I...>) {
  return __builtin_shufflevector(a, b, I...);
}
// Lane i takes lane i ^ By.
template <int By, class R, int... I> LITZ_FN R crossed(R v, seq<I...>) {
  return __builtin_shufflevector(v, v, (I ^ By)...);
}
#else
template <int At, class H, class R, class S> LITZ_FN H half(R a, S) {
  H r;
  __builtin_memcpy(&r, (const char*)&a + (At ? sizeof(r) : 0), sizeof(r));
  return r;
}
template <class R, class H, class S> LITZ_FN R concat(H a, H b, S) {
  R r;
  __builtin_memcpy(&r, &a, sizeof(a));
  __builtin_memcpy((char*)&r + sizeof(a), &b, sizeof(b));
  return r;
}
template <int By, class R, int... I> LITZ_FN R crossed(R v, seq<I...>) {
  return R{v[I ^ By]...};
}
#endif

// Portable forms, lane by lane; compilers that know better are given overloads below.
template <int R> LITZ_FN float round1(float x) {
  return R == FLOOR   ? __builtin_floorf(x)
         : R == CEIL  ? __builtin_ceilf(x)
         : R == TRUNC ? __builtin_truncf(x)
                      : __builtin_rintf(x);
}
template <int R> LITZ_FN double round1(double x) {
  return R == FLOOR   ? __builtin_floor(x)
         : R == CEIL  ? __builtin_ceil(x)
         : R == TRUNC ? __builtin_trunc(x)
                      : __builtin_rint(x);
}
LITZ_FN float fma1(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
LITZ_FN double fma1(double a, double b, double c) { return __builtin_fma(a, b, c); }
LITZ_FN float sqrt1(float a) { return __builtin_sqrtf(a); }
LITZ_FN double sqrt1(double a) { return __builtin_sqrt(a); }

template <class V> inline constexpr int lanes = sizeof(V) / sizeof(V{}[0]);

#if LITZ_ELEMENTWISE
template <class V> LITZ_FN V fma(V a, V b, V c) { return __builtin_elementwise_fma(a, b, c); }
template <class V> LITZ_FN V sqrt(V a) { return __builtin_elementwise_sqrt(a); }
template <int R, class V> LITZ_FN V round(V a) {
  if constexpr (R == FLOOR) return __builtin_elementwise_floor(a);
  else if constexpr (R == CEIL) return __builtin_elementwise_ceil(a);
  else if constexpr (R == TRUNC) return __builtin_elementwise_trunc(a);
  else return __builtin_elementwise_rint(a);
}
#else
template <class V> LITZ_FN V fma(V a, V b, V c) {
  V r = a;
  for (int i = 0; i < lanes<V>; i++) r[i] = fma1(a[i], b[i], c[i]);
  return r;
}
template <class V> LITZ_FN V sqrt(V a) {
  V r = a;
  for (int i = 0; i < lanes<V>; i++) r[i] = sqrt1(a[i]);
  return r;
}
template <int R, class V> LITZ_FN V round(V a) {
  V r = a;
  for (int i = 0; i < lanes<V>; i++) r[i] = round1<R>(a[i]);
  return r;
}
#endif
// The x86 rule: the second operand where either is nan or both are zero.
template <class V> LITZ_FN V max(V a, V b) { return a > b ? a : b; }
template <class V> LITZ_FN V min(V a, V b) { return a < b ? a : b; }

#if LITZ_GNU_X86 && defined(__FMA__) && defined(__AVX__)
#define LITZ_HW_(T, N, s, w)                                                                    \
  LITZ_FN reg<T, N> fma(reg<T, N> a, reg<T, N> b, reg<T, N> c) {                                \
    return __builtin_ia32_vfmadd##s##w(a, b, c);                                                \
  }                                                                                             \
  LITZ_FN reg<T, N> sqrt(reg<T, N> a) { return __builtin_ia32_sqrt##s##w(a); }                  \
  LITZ_FN reg<T, N> max(reg<T, N> a, reg<T, N> b) { return __builtin_ia32_max##s##w(a, b); }    \
  LITZ_FN reg<T, N> min(reg<T, N> a, reg<T, N> b) { return __builtin_ia32_min##s##w(a, b); }    \
  template <int R> LITZ_FN reg<T, N> round(reg<T, N> a) {                                       \
    return __builtin_ia32_round##s##w(a, R);                                                    \
  }
LITZ_HW_(float, 8, ps, 256)
LITZ_HW_(float, 4, ps, )
LITZ_HW_(double, 4, pd, 256)
LITZ_HW_(double, 2, pd, )
#undef LITZ_HW_
#endif

#if LITZ_KMASK
#define LITZ_HW_(T, N, s)                                                                       \
  LITZ_FN reg<T, N> fma(reg<T, N> a, reg<T, N> b, reg<T, N> c) {                                \
    return __builtin_ia32_vfmadd##s##512_mask(a, b, c, -1, 4);                                  \
  }                                                                                             \
  LITZ_FN reg<T, N> sqrt(reg<T, N> a) { return __builtin_ia32_sqrt##s##512_mask(a, a, -1, 4); } \
  LITZ_FN reg<T, N> max(reg<T, N> a, reg<T, N> b) {                                             \
    return __builtin_ia32_max##s##512_mask(a, b, a, -1, 4);                                     \
  }                                                                                             \
  LITZ_FN reg<T, N> min(reg<T, N> a, reg<T, N> b) {                                             \
    return __builtin_ia32_min##s##512_mask(a, b, a, -1, 4);                                     \
  }                                                                                             \
  template <int R> LITZ_FN reg<T, N> round(reg<T, N> a) {                                       \
    return __builtin_ia32_rndscale##s##_mask(a, R, a, -1, 4);                                   \
  }
LITZ_HW_(float, 16, ps)
LITZ_HW_(double, 8, pd)
#undef LITZ_HW_

// Comparisons into bit masks; select by bit mask (on integers of the element's width).
// The empty asm keeps a mask apart from its extension to a wider integer: GCC 12 makes one
// instruction of the two, and may then keep one byte of it in memory and read back two.
#define LITZ_CMP_(T, N, builtin, As, kind, ...)                                                 \
  template <class P> LITZ_FN unsigned cmp(reg<T, N> a, reg<T, N> b) {                           \
    auto m = __builtin_ia32_##builtin##_mask((reg<As, N>)a, (reg<As, N>)b, P::kind,             \
                                             -1 __VA_ARGS__);                                   \
    asm("" : "+k"(m));                                                                          \
    return m;                                                                                   \
  }
LITZ_CMP_(float, 16, cmpps512, float, F, , 4)
LITZ_CMP_(float, 8, cmpps256, float, F)
LITZ_CMP_(float, 4, cmpps128, float, F)
LITZ_CMP_(double, 8, cmppd512, double, F, , 4)
LITZ_CMP_(double, 4, cmppd256, double, F)
LITZ_CMP_(double, 2, cmppd128, double, F)
LITZ_CMP_(i32, 16, cmpd512, i32, I)
LITZ_CMP_(i32, 8, cmpd256, i32, I)
LITZ_CMP_(i32, 4, cmpd128, i32, I)
LITZ_CMP_(u32, 16, ucmpd512, int, I)
LITZ_CMP_(u32, 8, ucmpd256, int, I)
LITZ_CMP_(u32, 4, ucmpd128, int, I)
LITZ_CMP_(i64, 8, cmpq512, long long, I)
LITZ_CMP_(i64, 4, cmpq256, long long, I)
LITZ_CMP_(i64, 2, cmpq128, long long, I)
LITZ_CMP_(u64, 8, ucmpq512, long long, I)
LITZ_CMP_(u64, 4, ucmpq256, long long, I)
LITZ_CMP_(u64, 2, ucmpq128, long long, I)
#undef LITZ_CMP_

#define LITZ_SCALEF_(T, N, builtin, ...)                                                        \
  LITZ_FN reg<T, N> scale(reg<T, N> a, reg<T, N> n) {                                           \
    return __builtin_ia32_##builtin##_mask(a, n, a, -1 __VA_ARGS__);                            \
  }
LITZ_SCALEF_(float, 16, scalefps512, , 4)
LITZ_SCALEF_(float, 8, scalefps256)
LITZ_SCALEF_(float, 4, scalefps128)
LITZ_SCALEF_(double, 8, scalefpd512, , 4)
LITZ_SCALEF_(double, 4, scalefpd256)
LITZ_SCALEF_(double, 2, scalefpd128)
#undef LITZ_SCALEF_

#define LITZ_SEL_(T, N, builtin)                                                                \
  LITZ_FN reg<T, N> select(unsigned m, reg<T, N> a, reg<T, N> b) {                              \
    return __builtin_ia32_##builtin##_mask(b, a, m);                                            \
  }
template <int Bytes> LITZ_FN auto select_type() {
  if constexpr (Bytes == 8) return (long long)0;
  else if constexpr (Bytes == 4) return 0;
  else if constexpr (Bytes == 2) return (short)0;
  else return (char)0;
}
LITZ_SEL_(int, 16, blendmd_512)
LITZ_SEL_(int, 8, blendmd_256)
LITZ_SEL_(int, 4, blendmd_128)
LITZ_SEL_(long long, 8, blendmq_512)
LITZ_SEL_(long long, 4, blendmq_256)
LITZ_SEL_(long long, 2, blendmq_128)
LITZ_SEL_(short, 32, blendmw_512)
LITZ_SEL_(short, 16, blendmw_256)
LITZ_SEL_(short, 8, blendmw_128)
LITZ_SEL_(char, 64, blendmb_512)
LITZ_SEL_(char, 32, blendmb_256)
LITZ_SEL_(char, 16, blendmb_128)
#undef LITZ_SEL_
#endif

}  // namespace hw
}  // namespace litz
