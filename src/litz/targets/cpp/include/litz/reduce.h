// Accumulators of reductions that carry more than one value: argmax and argmin, Welford.
#pragma once
#include <litz/vec.h>

namespace litz {

// ---- argmax / argmin: the first index wins, nan beats all

namespace detail {
template <bool Largest, class V> LITZ_FN auto better(V a, V b) {
  if constexpr (is_bool_v<V>) return Largest ? gt(a, b) : lt(a, b);
  else if constexpr (!is_float_v<V>) return Largest ? gt(a, b) : lt(a, b);
  else return or_(Largest ? gt(a, b) : lt(a, b), and_(ne(a, a), eq(b, b)));
}
template <class V> LITZ_FN auto alike(V a, V b) {
  if constexpr (is_float_v<V>) return or_(eq(a, b), and_(ne(a, a), ne(b, b)));
  else return eq(a, b);
}
template <class V> struct index_ { using type = i64; };
template <class T, int N, Form F> struct index_<Vec<T, N, F>> { using type = Vec<i64, N>; };
}  // namespace detail

// V: a scalar type or a Vec.  Start from the identity, whose index loses to every other.
template <class V, bool Largest> struct ArgBest {
  using T = elem<V>;
  using I = typename detail::index_<V>::type;
  V value;
  I index;
  // worst: the least value of the type (argmax), the greatest (argmin).
  LITZ_FN explicit ArgBest(T worst) : value(worst), index((i64)(~(u64)0 >> 1)) {}
  LITZ_FN ArgBest(V v, I i) : value(v), index(i) {}
  LITZ_FN void take(V v, I i) {
    auto wins = or_(detail::better<Largest>(v, value),
                    and_(detail::alike(v, value), lt(i, index)));
    value = where(wins, v, value);
    index = where(wins, i, index);
  }
  template <int N> LITZ_FN void take(V v, I i, Vec<bool, N> m) {
    auto wins = m & (detail::better<Largest>(v, value) | (detail::alike(v, value) & (i < index)));
    value = where(wins, v, value);
    index = where(wins, i, index);
  }
  LITZ_FN void combine(const ArgBest& o) { take(o.value, o.index); }
  // The best lane.
  LITZ_FN ArgBest<T, Largest> reduce() const {
    if constexpr (!is_vec<V>) {
      return *this;
    } else {
      T v[lanes<V>];
      i64 k[lanes<V>];
      store(v, value);
      store(k, index);
      ArgBest<T, Largest> r(v[0], k[0]);
      for (int i = 1; i < lanes<V>; i++) r.take(v[i], k[i]);
      return r;
    }
  }
};
template <class V> using ArgMax = ArgBest<V, true>;
template <class V> using ArgMin = ArgBest<V, false>;

// ---- mean and sum of squared deviations in one pass (Welford; merging after Chan et al.)

template <class V> struct Welford {
  using T = elem<V>;
  V mean, m2, count;
  LITZ_FN Welford() : mean(T(0)), m2(T(0)), count(T(0)) {}
  LITZ_FN Welford(V mean, V m2, V count) : mean(mean), m2(m2), count(count) {}
  LITZ_FN void take(V x) {
    count = count + V(T(1));
    V inverse = V(T(1)) / count;  // off the chain of dependencies through mean
    V delta = x - mean;
    mean = mad(delta, inverse, mean);
    m2 = mad(delta, x - mean, m2);
  }
  template <int N> LITZ_FN void take(V x, Vec<bool, N> m) {
    Welford next = *this;
    next.take(x);
    mean = where(m, next.mean, mean);
    m2 = where(m, next.m2, m2);
    count = where(m, next.count, count);
  }
  LITZ_FN void combine(const Welford& o) {
    V n = count + o.count;
    V delta = o.mean - mean;
    V part = where(n > V(T(0)), o.count / n, V(T(0)));
    mean = mad(delta, part, mean);
    m2 = m2 + mad(delta * delta * count, part, o.m2);
    count = n;
  }
  LITZ_FN Welford<T> reduce() const {
    if constexpr (!is_vec<V>) {
      return *this;
    } else {
      using H = Vec<T, lanes<V> / 2>;
      Welford<H> a(low(mean), low(m2), low(count));
      a.combine(Welford<H>(high(mean), high(m2), high(count)));
      if constexpr (lanes<V> > 4) {
        return a.reduce();
      } else {
        Welford<T> r(a.mean[0], a.m2[0], a.count[0]);
        r.combine(Welford<T>(a.mean[1], a.m2[1], a.count[1]));
        return r;
      }
    }
  }
};

}  // namespace litz
