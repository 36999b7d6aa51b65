// The algorithms of sines and their inverses for float and double: what rounding loses is carried in a
// second value.  Constants: trig.h, trig64.h.
#pragma once
#include <litz/poly.h>
#include <litz/rare.h>

namespace litz {
namespace detail {

// Per element type: pi/2 as sums, and the tails of the series as polynomials of the square.
template <class T> struct Circle;

// x = n pi/2 + r + low for |x| <= 2^17 or Circle<double>::far_from, quarter the last bits of n.
template <class V> struct Quarter {
  V r, low;
  Vec<int_of<elem<V>>, lanes<V>> quarter;
};
template <class V> LITZ_FN Quarter<V> quarter_of(V x) {
  using C = Circle<elem<V>>;
  const V m(magic<elem<V>>);
  V t = mad(x, V(C::per_turn), m);
  V n = t - m;
  V s = mad(n, V(-C::turn[0]), x);  // exact
  // Exact too: the last bits of s are worth no less than those of p, whichever is larger.
  V p = n * V(C::turn[1]), r = s - p, lost = ((s - r) - p) - mad(n, V(C::turn[1]), -p);
  Pair<V> rest{r, mad(n, V(-C::turn[2]), lost)};
  if (!LITZ_FMA) rest = normalise(rest.high, rest.low);  // the parts of pi/2 are shorter there
  return {rest.high, rest.low, ibits(t)};
}
// The same for |x| <= Circle<float>::near in fewer steps: a product of n with the first of the parts
// behind turn[0] has no error, nor has s - r, since s and r are whole multiples of what that is one of.
template <class V> LITZ_FN Quarter<V> near_quarter_of(V x) {
  using C = Circle<elem<V>>;
  const V m(magic<elem<V>>);
  V t = mad(x, V(C::per_turn), m);
  V n = t - m;
  V s = mad(n, V(-C::turn[0]), x), r = mad(n, V(-C::rest[0]), s);
  return {r, mad(n, V(-C::rest[1]), mad(n, V(-C::rest[0]), s - r)), ibits(t)};
}
template <class V> LITZ_FN Pair<V> cos_pair(Quarter<V> q, V z) {
  using T = elem<V>;
  const V one(T(1)), half(T(-0.5));
  V high = mad(z, half, one);
  V low = mad(-q.r, q.low, mad(z, half, one - high));
  return {high, mad(Circle<T>::cos(z), z * z, low)};
}
template <class V> LITZ_FN auto odd_quarter(Quarter<V> q, int shift) {
  using I = decltype(q.quarter);
  return (q.quarter & I(1)) != I(shift);
}
template <class V> LITZ_FN Pair<V> sin_pair(Quarter<V> q, V z, Pair<V> cosine) {
  return {q.r, mad(Circle<elem<V>>::sin(z), q.r * z, q.low * cosine.high)};
}
// r with its sign changed where this bit of a quarter is set, and by the sign of x.
template <int Bit, class V, class I> LITZ_FN V turned(V r, I quarter, V x) {
  constexpr int to_sign = 8 * sizeof(elem<V>) - 1;
  const I top = I((elem<I>)((uint_of<elem<V>>)1 << to_sign));
  return bitcast<elem<V>>(ibits(r) ^ (((quarter << (to_sign - Bit)) ^ ibits(x)) & top));
}
// sin(x + shift pi/2)
template <class V> LITZ_FN V sin_quarter(V x, Quarter<V> q, int shift) {
  using I = decltype(q.quarter);
  V z = q.r * q.r;
  auto c = cos_pair(q, z), s = sin_pair(q, z, c);
  V v = where(odd_quarter(q, shift), c.high + c.low, s.high + s.low);
  return turned<1>(v, q.quarter + I(shift), shift ? V(elem<V>(0)) : x);
}

// A root as a sum; nan of negative numbers.
template <class V> LITZ_FN Pair<V> sqrt_pair(V z) {
  using T = elem<V>;
  V half, s;
#if LITZ_LOOKUP
  if constexpr (is_same<T, double>) {
    s = sqrt(z);
    half = V(0.5) / max2(V(0x1p-50), s);
  } else if constexpr (lanes<V> > 16) {
    auto a = sqrt_pair(low(z)), b = sqrt_pair(high(z));
    return {join(a.high, b.high), join(a.low, b.low)};
  } else if constexpr (lanes<V> < 16) {
    auto a = sqrt_pair(join(z, z));
    return {low(a.high), low(a.low)};
  } else {
    V about = z + V(0x1p-100f);  // not of zero
    about = V(__builtin_ia32_rsqrt14ps512_mask(about.v, about.v, (unsigned short)-1));
    half = about * V(0.5f);
    s = z * about;
    s = mad(mad(-s, s, z), half, s);
  }
#else
  s = sqrt(z);
  half = V(T(0.5)) / max2(V(T(0x1p-50)), s);
#endif
  return {s, mad(-s, s, z) * half};
}
// base + factor * asin(y): y is x or, beyond 1/2, sqrt((1 - |x|) / 2), of which asin is twice.
template <class V> LITZ_FN Pair<V> asin_parts(V a, Vec<bool, lanes<V>> inner) {
  using T = elem<V>;
  V z = where(inner, a * a, mad(a, V(T(-0.5)), V(T(0.5))));
  auto root = sqrt_pair(z);
  V s = where(inner, a, root.high);
  return {s, mad(Circle<T>::asin(z), s * z, where(inner, V(T(0)), root.low))};
}
// base + factor * y, |base| larger or 0
template <class V> LITZ_FN V from_base(Pair<V> base, V factor, Pair<V> y) {
  V whole = mad(factor, y.high, base.high);
  V low = mad(factor, y.high, base.high - whole) + base.low;
  return whole + mad(factor, y.low, low);
}
template <class V> LITZ_FN Pair<V> half_pis(V count) {
  using C = Circle<elem<V>>;
  return {count * V(C::half_pi), count * V(C::half_pi_low)};
}
template <class V> LITZ_FN V asin_of(V x) {
  using T = elem<V>;
  V a = abs(x);
  auto inner = a <= V(T(0.5));
  V count = where(inner, V(T(0)), V(T(1))), factor = where(inner, V(T(1)), V(T(-2)));
  return copysign(from_base(half_pis(count), factor, asin_parts(a, inner)), x);
}
template <class V> LITZ_FN V acos_of(V x) {
  using T = elem<V>;
  const V zero(T(0)), one(T(1)), two(T(2));
  V a = abs(x);
  auto inner = a <= V(T(0.5)), negative = x < zero;
  V count = where(inner, one, where(negative, two, zero));
  V factor = where(inner, -one, two);
  return from_base(half_pis(count), where(negative, -factor, factor), asin_parts(a, inner));
}
// The angle of (x, y), both positive and neither of extreme size; of (-x, y) where ``left``.
template <class V> LITZ_FN V angle(V y, V x, Vec<bool, lanes<V>> left) {
  using T = elem<V>;
  const V zero(T(0)), one(T(1)), two(T(2));
  V large = max2(x, y), small = min2(x, y), sum = large + small;
  auto middle = small + small > large, up = y > x;
  V num = where(middle, small - large, small);  // without an error
  V den = where(middle, sum, large);
  V den_low = where(middle, small - (sum - large), zero);
  V inv = inverse(den), s = num * inv;
  V rest = mad(-s, den_low, mad(-s, den, num)) * inv;
  V z = s * s;
  V count = where(middle, V(T(0.5)), zero);
  count = where(up, one - count, count);
  count = where(left, two - count, count);
  return from_base(half_pis(count), where(up ^ left, -one, one),
                   Pair<V>{s, mad(Circle<T>::atan(z), s * z, rest)});
}
template <class V> LITZ_FN V atan_by_quotient(V x) {
  using T = elem<V>;
  V a = min2(V(T(0x1p60)), abs(x)), one = V(T(1));
  return copysign(angle(a, one, false), x);
}
// Sizes that the quotient is not made for: by the C library.
template <class V> LITZ_FN V atan2_of(V y, V x) {
  using T = elem<V>;
  V ay = abs(y), ax = abs(x), sum = ay + ax;
  auto flat = ay == V(T(0));
  V r = copysign(angle(ay, where(flat, V(T(1)), ax), signbit(x)), y);
  auto hard = ~(sum < V(T(1) / Circle<T>::least)) | (~flat & (ay < V(Circle<T>::least)));
  return LITZ_UNLIKELY(hany(hard)) ? rare::by_lane<::atan2>(hard, r, y, x) : r;
}

}  // namespace detail
}  // namespace litz
