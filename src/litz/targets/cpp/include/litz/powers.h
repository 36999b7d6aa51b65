// Powers of double: where a register looks logarithms up by a logarithm in two parts, within 0.55 ulp (1.5
// where the result's exponent is in the hundreds); else by the C library.  Coefficients: tests/ops/minimax.py.
#pragma once
#include <litz/rare.h>
#include <litz/wide.h>

namespace litz {
#if LITZ_LOOKUP
namespace wide {

// What rounding left of log2_values and of exp2_values.
static constexpr double log2_lows[] = {
    0.0, 0x1.5d243efd93259p-58, 0x1.013b6eaceb921p-57, 0x1.34107c0e54aedp-56, 0x1.b6d40900b2502p-61,
    -0x1.01d98c3531027p-58, -0x1.9ca1a3202b3d7p-56, -0x1.f9fb952bbbcccp-56, 0x1.6d266d6cdc959p-56,
    -0x1.f73d83987f26dp-56, -0x1.4a31ce1b7e328p-56, -0x1.0389b662673fcp-57, 0x1.817fd3b7d7e5dp-57,
    -0x1.cbdb5d9dc29f2p-60, 0x1.30c22d15199b8p-58, 0.0};
static constexpr double exp2_lows[] = {
    0.0, 0x1.8a62e4adc610bp-54, -0x1.19041b9d78a76p-55, 0x1.9b07eb6c70573p-54,
    0x1.6f46ad23182e4p-55, 0x1.ada0911f09ebcp-55, 0x1.d4397afec42e2p-56, 0x1.6324c054647adp-54,
    -0x1.bdd3413b26456p-54, -0x1.41577ee04992fp-55, 0x1.6e9f156864b27p-54, 0x1.c7c46b071f2bep-56,
    0x1.7a1cd345dcc81p-54, 0x1.11065895048ddp-55, 0x1.2ed02d75b3707p-55, -0x1.e9c23179c2893p-54};

// log2(a) as a sum, for a positive finite a.
template <class V> LITZ_FN detail::Pair<V> log2_pair(V a) {
  auto [m, e] = mantissa(a);
  auto which = ibits(m) >> 48;
  V inverse = pick(log2_inverses, which), value = pick(log2_values, which);
  V product = m * inverse, r = product - V(1.0), r_low = fma(m, inverse, -product);
  V whole = e + value, low = value - (whole - e) + pick(log2_lows, which);
  const V unit(0x1.71547652b82fep+0), unit_low(0x1.777d0ffda0d24p-56), half(-0.5);
  V first = r * unit, square = r * r;
  V slope = square - r + V(1.0);  // of log(1 + r)
  V first_low = mad(r_low * slope, unit, mad(r, unit_low, fma(r, unit, -first)));
  V second = square * unit * half;
  V second_low = mad(square, unit_low, fma(square, unit, second + second));
  second_low = mad(fma(r, r, -square), unit, second_low);
  V q = poly(r, 0x1.ec709dc3a03fdp-2, -0x1.71547652b82fep-2, 0x1.2776c50efa610p-2,
             -0x1.ec709dc3ab534p-3, 0x1.a617629e2f505p-3, -0x1.715475ae92921p-3,
             0x1.484b2f4d600c5p-3, -0x1.2779c4df49b81p-3, 0x1.0c8f925f3b953p-3,
             -0x1.e3d5b786167cep-4, 0x1.605a25e0f70b2p-4);
  V s = whole + first, t = s + second;
  low = low + (first - (s - whole)) + (second - (t - s));
  low = mad(q * r, square, mad(second_low, half, low + first_low));
  return detail::normalise(t, low);
}
LITZ_FN Vec<double, 8> pow(Vec<double, 8> x, Vec<double, 8> y) {
  using V = Vec<double, 8>;
  auto l = log2_pair(abs(x));
  V t = y * l.high, low = mad(y, l.low, fma(y, l.high, -t));
  low = where(abs(t) < V(1100.0), low, V(0.0));
  t = detail::clamp(t, -1100.0, 1100.0);
  V sixteenths = t + V(0x1.8p48), n = sixteenths - V(0x1.8p48), r = t - n + low;
  V p = pick(exp2_values, sixteenths);
  V q = poly(r, 0x1.62e42fefa39efp-1, 0x1.ebfbdff82c599p-3, 0x1.c6b08d704ec0ap-5,
             0x1.3b2ab6fabf4d2p-7, 0x1.5d87faaf32a94p-10, 0x1.430a81608518ap-13,
             0x1.01be5e26896dep-16);
  r = detail::ldexp(p + mad(q * r, p, pick(exp2_lows, sixteenths)), n);
  auto plain = (x > V(0.0)) & (x < V(inf64)) & (abs(y) < V(inf64));
  return LITZ_LIKELY(hall(plain)) ? r : signed_pow(x, y, r);
}

}  // namespace wide
template <int N> LITZ_FN Vec<double, N> pow(Vec<double, N> x, Vec<double, N> y) {
  if constexpr (N > 8) return join(pow(low(x), low(y)), pow(high(x), high(y)));
  else if constexpr (N < 8) return low(pow(join(x, x), join(y, y)));
  else return wide::pow(x, y);
}
LITZ_FORMS_2_(double, pow)
#else
LITZ_RARE_2_(double, pow, ::pow)
#endif

}  // namespace litz
