// The logarithm of the sum of two exponentials.
#pragma once
#include <litz/math.h>
#include <litz/math64.h>

namespace litz {

template <class V> LITZ_FN V log_add_exp(V a, V b) {
  const V top = maximum(a, b), low = minimum(a, b);
  return where(isinf(top), top, add(top, log1p(exp(sub(low, top)))));
}

}  // namespace litz
