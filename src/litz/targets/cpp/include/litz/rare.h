// Functions that are rarely worth a vector: lane by lane, by the C library or by plain code.
//
// The library's are declared here: its headers would cost more time than the kernel.
#pragma once
#include <litz/vec.h>

extern "C" {
double sin(double) noexcept;
double cos(double) noexcept;
double tan(double) noexcept;
double asinh(double) noexcept;
double acosh(double) noexcept;
double atan2(double, double) noexcept;
double lgamma(double) noexcept;
double pow(double, double) noexcept;
double log(double) noexcept;
}

namespace litz {
namespace rare {

template <class T, class F, int N, class... X> LITZ_FN Vec<T, N> map(F f, Vec<T, N> x, X... more) {
  T v[N];
  store(v, x);
  for (int i = 0; i < N; i++) v[i] = f(v[i], more[i]...);
  return load<N>(v);
}
// ``fast``, but by a function of double where ``hard``, lane by lane.
template <auto F, class T, int N, class... X>
LITZ_SLOW Vec<T, N> by_lane(Vec<bool, N> hard, Vec<T, N> fast, X... x) {
  for (unsigned on = mask_bits(hard); on; on &= on - 1) {
    const int i = __builtin_ctz(on);
    fast.set(i, (T)F((double)x[i]...));
  }
  return fast;
}

// Asymptotic series above 10, recurrence below, reflection for negative numbers.
LITZ_SLOW double digamma(double x) {
  if (x == 0) return __builtin_copysign(inf64, -x);
  double r = 0;
  if (x < 0) {
    if (x == __builtin_trunc(x)) return nan64;
    double whole = __builtin_trunc(x), part = x - whole;  // tan has the period pi
    r = -0x1.921fb54442d18p+1 / ::tan(0x1.921fb54442d18p+1 * part);
    x = 1 - x;
  }
  for (; x < 10; x += 1) r -= 1 / x;
  if (x == 10) return r + 2.25175258906672110764;
  double tail = 0;
  if (x < 1e17) {
    double z = 1 / (x * x);
    tail = z * (1.0 / 12 -
                z * (1.0 / 120 -
                     z * (1.0 / 252 - z * (1.0 / 240 - z * (1.0 / 132 - z * (691.0 / 32760 - z / 12))))));
  }
  return r + (::log(x) - 0.5 / x - tail);
}

// The next value after x towards y, by stepping the bits.
template <class T> LITZ_FN T nextafter1(T x, T y) {
  using I = int_of<T>;
  if (x != x || y != y) return x + y;
  if (x == y) return y;
  if (x == T(0)) return copysign(bitcast<T>(I(1)), y);
  I b = ibits(x);
  return bitcast<T>((x < y) == (b >= 0) ? I(b + 1) : I(b - 1));
}

}  // namespace rare

#define LITZ_RARE_1_(T, name, f)                                                          \
  LITZ_FN T name(T x) { return (T)f((double)x); }                                         \
  template <int N> LITZ_FN Vec<T, N> name(Vec<T, N> x) {                                  \
    return rare::map([](T v) { return (T)f((double)v); }, x);                             \
  }
#define LITZ_RARE_2_(T, name, f)                                                          \
  LITZ_FN T name(T x, T y) { return f(x, y); }                                            \
  template <int N> LITZ_FN Vec<T, N> name(Vec<T, N> x, Vec<T, N> y) {                     \
    return rare::map([](T v, T w) { return f(v, w); }, x, y);                             \
  }                                                                                       \
  template <int N> LITZ_FN Vec<T, N> name(Vec<T, N> x, T y) { return name(x, Vec<T, N>(y)); } \
  template <int N> LITZ_FN Vec<T, N> name(T x, Vec<T, N> y) { return name(Vec<T, N>(x), y); }
LITZ_RARE_1_(double, asinh, ::asinh)
LITZ_RARE_1_(double, acosh, ::acosh)
LITZ_RARE_1_(double, digamma, rare::digamma)
LITZ_RARE_1_(double, lgamma, ::lgamma)
LITZ_RARE_2_(double, nextafter, rare::nextafter1<double>)
LITZ_RARE_2_(float, nextafter, rare::nextafter1<float>)

}  // namespace litz
