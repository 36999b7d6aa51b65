// Division with remainder, shifts by any amount, integer powers.
//
// Integer division never traps, since masked-off lanes may hold anything: x / 0 = x with remainder
// 0, and the most negative number over -1 wraps.
#pragma once
#include <litz/poly.h>

extern "C" {
float fmodf(float, float) noexcept;
double fmod(double, double) noexcept;
}

namespace litz {
namespace detail {

template <class T> LITZ_FN T div1(T a, T b) {
  if constexpr (is_signed<T>) {
    if (b == T(-1)) return neg(a);
  }
  return (T)(a / (b == T(0) ? T(1) : b));
}
template <class T, int N> LITZ_SLOW Vec<T, N> div_lanes(Vec<T, N> a, Vec<T, N> b) {
  T x[N], y[N];
  store(x, a);
  store(y, b);
  for (int i = 0; i < N; i++) x[i] = div1(x[i], y[i]);
  return load<N>(x);
}
// Quotients in floating point are right where dividend and divisor are exact with a bit to spare.
template <class F, class T, int N> LITZ_FN Vec<T, N> div_float(Vec<T, N> a, Vec<T, N> b) {
#if !LITZ_KMASK
  // Below AVX-512 no instruction converts 8-byte integers; here they are below 2^51.
  if constexpr (sizeof(T) == 8) {
    auto q = small_float<F>(bitcast<i64>(a)) / small_float<F>(bitcast<i64>(b));
    return bitcast<T>(small_int(litz::trunc(q)));
  }
#endif
  return cast<T>(cast<F>(a) / cast<F>(b));
}
}  // namespace detail

template <class V> LITZ_FN V truncdiv(V a, V b) {
  using T = elem<V>;
  if constexpr (is_float<T>) {
    return trunc(a / b);
  } else if constexpr (!is_vec<V>) {
    return detail::div1(a, b);
  } else {
    b = where(b == V(T(0)), V(T(1)), b);
    if constexpr (sizeof(T) < 4) {
      return detail::div_float<float>(a, b);
    } else if constexpr (is_same<T, i32>) {
      V q = detail::div_float<double>(a, b);  // 2^31 does not fit and comes back as -2^31: wrapped
      return q;
    } else if constexpr (sizeof(T) == 4) {
      return detail::div_float<double>(a, b);
    } else {
      V limit = V(T((u64)1 << 51));
      auto small = is_signed<T> ? (a < limit) & (a > neg(limit)) & (b < limit) & (b > neg(limit))
                                : (a < limit) & (b < limit);
      if (LITZ_LIKELY(hall(small))) return detail::div_float<double>(a, b);
      return detail::div_lanes(a, b);
    }
  }
}

// ---- remainders of floats: exact, as C's fmod

namespace detail {
LITZ_FN float fmod1(float a, float b) { return ::fmodf(a, b); }
LITZ_FN double fmod1(double a, double b) { return ::fmod(a, b); }
template <class T, int N> LITZ_SLOW Vec<T, N> fmod_lanes(Vec<T, N> a, Vec<T, N> b) {
  T x[N], y[N];
  store(x, a);
  store(y, b);
  for (int i = 0; i < N; i++) x[i] = fmod1(x[i], y[i]);
  return load<N>(x);
}
}  // namespace detail

// The sign of the dividend.
template <class V> LITZ_FN V fmod(V a, V b) {
  using T = elem<V>;
  if constexpr (!is_float<T>) {
    if constexpr (is_vec<V>) b = where(b == V(T(0)), V(T(1)), b);
    else b = b == T(0) ? T(1) : b;
    return sub(a, mul(truncdiv(a, b), b));
  } else if constexpr (!is_vec<V>) {
    return detail::fmod1(a, b);
  } else {
#if LITZ_FMA
    // One division gives the quotient to within one where it has few bits; the rest is exact.
    V q = trunc(a / b);
    V limit = V(T(sizeof(T) == 4 ? 0x1p22 : 0x1p51));
    V infinity = V(T(is_same<T, float> ? inf32 : inf64));
    if (LITZ_LIKELY(hall((abs(q) < limit) & (abs(b) < infinity)))) {
      V d = abs(b), r = fma(-abs(q), d, abs(a));
      r = where(r < V(T(0)), r + d, r);
      r = where(r >= d, r - d, r);
      return copysign(r, a);
    }
#endif
    return detail::fmod_lanes(a, b);
  }
}

namespace detail {
template <class V> LITZ_FN auto wrong_sign(V r, V b) {
  const V zero = V(elem<V>(0));
  if constexpr (is_vec<V>) return (r != zero) & ((r < zero) ^ (b < zero));
  else return r != zero && (r < zero) != (b < zero);
}
}  // namespace detail

// The sign of the divisor, as Python's % and torch.remainder.
template <class V> LITZ_FN V mod(V a, V b) {
  V r = fmod(a, b);
  if constexpr (!is_signed<elem<V>>) return r;
  else return where(detail::wrong_sign(r, b), add(r, b), r);
}

// Rounds down, as Python's // and torch.floor_divide (which see for floats).
template <class V> LITZ_FN V floordiv(V a, V b) {
  using T = elem<V>;
  if constexpr (is_float<T>) {
    const V zero = V(T(0)), one = V(T(1));
    V r = fmod(a, b);
    V q = (a - r) / b;
    q = where(detail::wrong_sign(r, b), q - one, q);
    V f = floor(q);
    f = where(q - f > V(T(0.5)), f + one, f);
    f = where(q == zero, copysign(zero, a / b), f);
    return where(b == zero, a / b, f);
  } else if constexpr (!is_signed<T>) {
    return truncdiv(a, b);
  } else {
    V q = truncdiv(a, b);
    V d = where(b == V(T(0)), V(T(1)), b);
    V r = sub(a, mul(q, d));
    return where(detail::wrong_sign(r, d), sub(q, V(T(1))), q);
  }
}
LITZ_MIXED_(T, truncdiv)
LITZ_MIXED_(T, fmod)
LITZ_MIXED_(T, mod)
LITZ_MIXED_(T, floordiv)

// ---- shifts: an amount out of range shifts everything out

template <class V> LITZ_FN V shl(V a, V b) {
  using T = elem<V>;
  if constexpr (sizeof(T) < 4) {
    return cast<T>(shl(cast<u32>(a), cast<u32>(cast<uint_of<T>>(b))));
  } else {
    using U = decltype(cast<uint_of<T>>(a));
    U n = cast<uint_of<T>>(b);
    const U bits = U((uint_of<T>)(8 * sizeof(T)));
    auto in = n < bits;
    return cast<T>(where(in, cast<uint_of<T>>(a) << where(in, n, U(0)), U(0)));
  }
}
template <class V> LITZ_FN V shr(V a, V b) {
  using T = elem<V>;
  if constexpr (sizeof(T) < 4) {
    using W = typename wrap_<T>::type;
    if constexpr (is_signed<T>) return cast<T>(shr(cast<i32>(a), cast<i32>(cast<W>(b))));
    else return cast<T>(shr(cast<u32>(a), cast<u32>(b)));
  } else {
    using U = decltype(cast<uint_of<T>>(a));
    U n = cast<uint_of<T>>(b);
    const U last = U((uint_of<T>)(8 * sizeof(T) - 1));
    auto in = n <= last;
    V r = a >> cast<T>(where(in, n, last));
    if constexpr (is_signed<T>) return r;
    else return where(in, r, V(T(0)));
  }
}
LITZ_MIXED_(T, shl)
LITZ_MIXED_(T, shr)

// a to the power b; negative powers give 0, but for the units.
template <class V> LITZ_FN V ipow(V a, V b) {
  using T = elem<V>;
  const V zero = V(T(0)), one = V(T(1));
  V result = one, base = a;
  auto left = cast<uint_of<T>>(b);
  using U = decltype(left);
  const U none = U((uint_of<T>)0);
  if constexpr (is_signed<T>) left = where(b < zero, none, left);
  while (hany(left != none)) {
    auto odd = and_(left, U((uint_of<T>)1)) != none;
    result = where(odd, mul(result, base), result);
    base = mul(base, base);
    if constexpr (is_vec<U> && sizeof(T) < 4) left = cast<uint_of<T>>(cast<u32>(left) >> 1);
    else left = (U)(left >> 1);
  }
  if constexpr (is_signed<T>) {
    auto odd = and_(b, one) != zero;
    V unit = where(a == one, one, where(a == neg(one), where(odd, neg(one), one), zero));
    return where(b < zero, unit, result);
  } else {
    return result;
  }
}
LITZ_MIXED_(T, ipow)

}  // namespace litz
