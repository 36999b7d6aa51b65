// The logarithm of the sum of two exponentials.
#pragma once
#include <litz/math.h>
#include <litz/math64.h>
#include <litz/scan.h>

namespace litz {

template <class V> LITZ_FN V log_add_exp(V a, V b) {
  const V top = maximum(a, b), low = minimum(a, b);
  return where(isinf(top), top, add(top, log1p(exp(sub(low, top)))));
}

// Such logarithms along lanes, behind a state that takes them all. Of terms that the state is not
// far below the exponentials are summed: one logarithm a lane, and no more lost than at its size.
template <class T, int N> LITZ_FN Vec<T, N> scan_log_add_exp(T& state, Vec<T, N> v) {
  const T before = state;
  if (LITZ_LIKELY(before - before == T(0) && hall(v <= Vec<T, N>(before + T(1))))) {
    const auto terms = exp(v - Vec<T, N>(before));
    const auto sums = detail::within(terms, T(0), [](auto a, auto b) LITZ_LAMBDA { return a + b; });
    const auto out = Vec<T, N>(before) + log1p(sums);
    state = out[N - 1];
    return out;
  }
  return scan_lanes(state, v, -(T)__builtin_inf(),
                    [](auto a, auto b) LITZ_LAMBDA { return log_add_exp(a, b); });
}

}  // namespace litz
