// What generated loops call beyond vectors: threads, lane-by-lane access, updates, arg reductions.
#pragma once
#include <litz/vec.h>

extern "C" int omp_get_max_threads(void);
extern "C" int omp_get_thread_num(void);
extern "C" int omp_get_num_threads(void);
extern "C" void* malloc(unsigned long);
extern "C" void free(void*);

namespace litz {

LITZ_FN i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }
LITZ_FN i64 least(i64 a, i64 b) { return a < b ? a : b; }
LITZ_FN i64 greatest(i64 a, i64 b) { return a > b ? a : b; }

LITZ_FN i64 floor_div(i64 a, i64 b) { return a / b - ((a % b != 0) & ((a % b < 0) != (b < 0))); }
LITZ_FN i64 floor_mod(i64 a, i64 b) { return a - b * floor_div(a, b); }

// A sum of exponentials below a maximum, below that and another; without terms there is none.
template <class T> LITZ_FN double rescaled(double sum, T top, T part) {
  T most = maximum(top, part);
  if (most == top) return sum;
  return top == -__builtin_inf() ? 0.0 : sum * __builtin_exp((double)top - (double)most);
}

// ---- threads

// What a kernel reports that got no memory, beside 1 and 2 of failed checks.
inline constexpr int no_memory = 4;

// Runs units w .. w1 of a kernel; not 0 if an index check failed.
using Part = int (*)(void* const*, const i64*, i64, i64);

// All units, in as many threads as the work is worth (one per `grain`).
static inline int run_units(Part part, void* const* ptrs, const i64* ints, i64 units, i64 work,
                            i64 grain) {
  if (units <= 0) return 0;
  i64 most = least(work / grain, units);
  i64 nt = most <= 1 ? 1 : least(most, omp_get_max_threads());
  if (nt <= 1) return part(ptrs, ints, 0, units);
  int bad = 0;
#pragma omp parallel num_threads((int)nt) reduction(| : bad)
  {
    const i64 t = omp_get_thread_num(), n = omp_get_num_threads();
    bad |= part(ptrs, ints, units * t / n, units * (t + 1) / n);
  }
  return bad;
}

// A call of a kernel among others that need nothing of it, in one parallel region.
struct Call {
  Part part;
  void* const* ptrs;
  const i64* ints;
  i64 units, work;
};

// `a * b / c`, of numbers whose product may be long.
LITZ_FN i64 share(i64 a, i64 b, i64 c) { return (i64)((__int128)a * b / c); }

// All units of all calls: each thread has as much work, in as many calls as that takes.
static inline int run_calls(const Call* calls, i64 count, i64 grain) {
  i64 all = 0;
  for (i64 k = 0; k < count; ++k) all += greatest(calls[k].work, 1);
  const i64 nt = least(all / grain, omp_get_max_threads());
  int bad = 0;
  if (nt <= 1) {
    for (const Call* c = calls; c < calls + count; ++c)
      if (c->units > 0) bad |= c->part(c->ptrs, c->ints, 0, c->units);
    return bad;
  }
#pragma omp parallel num_threads((int)nt) reduction(| : bad)
  {
    const i64 t = omp_get_thread_num(), n = omp_get_num_threads();
    const i64 from = share(all, t, n), to = share(all, t + 1, n);
    i64 start = 0;
    for (const Call* c = calls; c < calls + count; ++c) {
      const i64 work = greatest(c->work, 1), end = start + work;
      if (end > from && start < to) {
        const i64 first = share(c->units, greatest(from - start, 0), work);
        const i64 last = share(c->units, least(to - start, work), work);
        if (last > first) bad |= c->part(c->ptrs, c->ints, first, last);
      }
      start = end;
    }
  }
  return bad;
}

// A reduction that threads divide: each leaves its part in a room of `cells` values of 8 bytes, and
// the end combines the rooms, in their order.
using PartOf = int (*)(void* const*, const i64*, i64, i64, char*);
using End = int (*)(void* const*, const i64*, char*, i64);

static inline int run_split(PartOf part, End end, void* const* ptrs, const i64* ints, i64 units,
                            i64 cells, i64 work, i64 grain) {
  i64 most = least(work / grain, units);
  i64 nt = most <= 1 ? 1 : least(most, omp_get_max_threads());
  int bad = 0;
  char* room = (char*)malloc(8 * (unsigned long)(cells * nt));
  if (!room) return no_memory;
  if (nt <= 1) {
    bad = part(ptrs, ints, 0, units, room);
  } else {
    i64 parts = nt;
#pragma omp parallel num_threads((int)nt) reduction(| : bad)
    {
      const i64 t = omp_get_thread_num(), n = omp_get_num_threads();
      if (t == 0) parts = n;
      bad |= part(ptrs, ints, units * t / n, units * (t + 1) / n, room + 8 * cells * t);
    }
    nt = parts;
  }
  bad |= end(ptrs, ints, room, nt);
  free(room);
  return bad;
}

// A kernel and a reduction that threads divide, which walk over the same units: block by block, so
// that the second finds in the cache what the first has read.  Each block has a room.  Blocks have
// `block` units at most, and each thread as many of them.
static inline int run_steps(Part rows, void* const* row_ptrs, PartOf part, End end,
                            void* const* ptrs, const i64* ints, i64 units, i64 block, i64 cells,
                            i64 work, i64 grain) {
  const i64 nt = greatest(1, least(least(work / grain, units), omp_get_max_threads()));
  const i64 each = ceil_div(units, nt * ceil_div(units, nt * block)), blocks = ceil_div(units, each);
  char* room = (char*)malloc(8 * (unsigned long)(cells * blocks));
  if (!room) return no_memory;
  int bad = 0;
  const auto run = [&](i64 from, i64 to) {
    int found = 0;
    for (i64 b = from; b < to; ++b) {
      const i64 first = b * each, last = least(units, first + each);
      found |= rows(row_ptrs, ints, first, last);
      found |= part(ptrs, ints, first, last, room + 8 * cells * b);
    }
    return found;
  };
  if (nt <= 1) {
    bad = run(0, blocks);
  } else {
#pragma omp parallel num_threads((int)nt) reduction(| : bad)
    {
      const i64 t = omp_get_thread_num(), n = omp_get_num_threads();
      bad |= run(blocks * t / n, blocks * (t + 1) / n);
    }
  }
  bad |= end(ptrs, ints, room, blocks);
  free(room);
  return bad;
}

// A thread's memory of a size that only the call knows, at a cache line; null where there is none.
struct Scratch {
  void* const start;
  void* const at;
  explicit Scratch(i64 bytes)
      : start(malloc((u64)bytes + 64)), at((void*)(start ? ((u64)start + 63) & ~(u64)63 : 0)) {}
  Scratch(const Scratch&) = delete;
  ~Scratch() { free(start); }
};

// ---- lane by lane: f(j) for every lane, for the first n, or for those of a mask

template <int N, class F> LITZ_FN auto each(F f) {
  using T = decltype(f(i64(0)));
  using B = detail::bits_of<T>;
  const auto v = detail::from_lanes<B, N>([&](i64 j) LITZ_LAMBDA { return bitcast<B>(f(j)); });
  if constexpr (is_same<T, bool>) return v != Vec<B, N>(B(0));
  else return Vec<T, N>(v);
}
template <int N, class F> LITZ_FN auto each(i64 n, F f) {
  using T = decltype(f(i64(0)));
  T buffer[N] = {};
  for (i64 j = 0; j < n; j++) buffer[j] = f(j);
  return load<N>((const T*)buffer);
}
template <int N, class F> LITZ_FN auto each(Vec<bool, N> m, F f) {
  using T = decltype(f(i64(0)));
  T buffer[N] = {};
  for (unsigned bits = mask_bits(m); bits; bits &= bits - 1) {
    const int j = __builtin_ctz(bits);
    buffer[j] = f(j);
  }
  return load<N>((const T*)buffer);
}

template <i64... K> struct Offsets {};
// The places of lanes that lie apart by constants.
template <int N, i64... K> LITZ_FN Vec<i64, N> places(i64 first, Offsets<K...>) {
  static_assert(sizeof...(K) == N);
  const i64 at[N] = {K...};
  return load<N>((const i64*)at) + Vec<i64, N>(first);
}

// ---- updates of memory

namespace update {
struct set {
  template <class T> static LITZ_FN T apply(T, T v) { return v; }
};
#define LITZ_UPDATE_(name, f)                                                 \
  struct name {                                                               \
    template <class T> static LITZ_FN T apply(T old, T v) {                   \
      if constexpr (is_half<T>) return cast<T>(f(to_float(old), to_float(v))); \
      else return f(old, v);                                                  \
    }                                                                         \
  };
LITZ_UPDATE_(add, litz::add)
LITZ_UPDATE_(mul, litz::mul)
LITZ_UPDATE_(max, litz::maximum)
LITZ_UPDATE_(min, litz::minimum)
#undef LITZ_UPDATE_
}  // namespace update

// p[index(j)] = U(p[index(j)], v[j]), in the order of lanes.
template <class U, class T, int N, class F> LITZ_FN void put_each(T* p, Vec<T, N> v, F index) {
  T buffer[N];
  store(buffer, v);
  LITZ_UNROLL
  for (int j = 0; j < N; j++) {
    T& x = p[index(j)];
    x = U::apply(x, buffer[j]);
  }
}
template <class U, class T, int N, class F>
LITZ_FN void put_each(T* p, Vec<T, N> v, i64 n, F index) {
  T buffer[N];
  store(buffer, v);
  for (i64 j = 0; j < n; j++) {
    T& x = p[index(j)];
    x = U::apply(x, buffer[j]);
  }
}
template <class U, class T, int N, class F>
LITZ_FN void put_each(T* p, Vec<T, N> v, Vec<bool, N> m, F index) {
  T buffer[N];
  store(buffer, v);
  for (unsigned bits = mask_bits(m); bits; bits &= bits - 1) {
    const int j = __builtin_ctz(bits);
    T& x = p[index(j)];
    x = U::apply(x, buffer[j]);
  }
}

// Ask for where N elements from p on are to be changed, if there are as many left.
template <int N, class T, class I>
LITZ_FN void ask_each(T* p, const I* places, i64 step, i64 apart, i64 left) {
  if (left < N) return;
  LITZ_UNROLL
  for (int j = 0; j < N; j++) __builtin_prefetch(p + places[j] * step + j * apart, 1, 3);
}

// ---- checks

LITZ_FN i64 check_index(i64 i, i64 size, int& bad) {
  if (LITZ_LIKELY((u64)i < (u64)size)) return i;
  bad = 1;
  return 0;
}
// Without registers for masks those of 64 bits take long to become masks of lanes.
#if LITZ_GNU_X86 && defined(__AVX2__) && !LITZ_KMASK
namespace detail {
template <int N> LITZ_FN bool any_negative(Vec<i64, N> v) {
  if constexpr (form<i64, N> == SPLIT) return any_negative(v.lo | v.hi);
  else if constexpr (N == 4) return __builtin_ia32_movmskpd256((hw::reg<double, N>)v.v);
  else return hany(v < Vec<i64, N>(0));
}
}  // namespace detail
#endif
template <int N>
LITZ_FN Vec<i64, N> check_index(Vec<i64, N> i, Vec<i64, N> size, Vec<bool, N> m, int& bad) {
#if LITZ_GNU_X86 && defined(__AVX2__) && !LITZ_KMASK
  if (LITZ_LIKELY(!detail::any_negative(i | (size - Vec<i64, N>(1) - i)))) return i;
#endif
  const Vec<bool, N> out = bitcast<u64>(i) >= bitcast<u64>(size);  // as u64, negative ones are large
  if (LITZ_LIKELY(!hany(out))) return i;
  if (hany(out & m)) bad = 1;
  return where(out, Vec<i64, N>(0), i);
}

template <class T> LITZ_FN T check_divisor(T b, int& bad) {
  if (LITZ_UNLIKELY(b == T(0))) bad = 2;
  return b;
}
template <class T, int N>
LITZ_FN Vec<T, N> check_divisor(Vec<T, N> b, Vec<bool, N> m, int& bad) {
  if (LITZ_UNLIKELY(hany((b == Vec<T, N>(T(0))) & m))) bad = 2;
  return b;
}

// ---- the position of the largest or smallest value: nan wins, then the first position

// Whether (v, i) comes before (w, k).
template <bool Max, class V, class I> LITZ_FN auto precedes(V v, I i, V w, I k) {
  if constexpr (is_float_v<V>) {
    auto better = (Max ? gt(v, w) : lt(v, w)) | (isnan(v) & eq(w, w));
    auto same_ = eq(v, w) | (isnan(v) & isnan(w));
    return better | (same_ & lt(i, k));
  } else {
    return (Max ? gt(v, w) : lt(v, w)) | (eq(v, w) & lt(i, k));
  }
}
template <bool Max, class V, class I> LITZ_FN void take(V& acc, I& at, V v, I i) {
  auto m = precedes<Max>(v, i, acc, at);
  acc = where(m, v, acc);
  at = where(m, i, at);
}
template <class T> struct Found {
  T value;
  i64 at;
};
// The best lane of a vector accumulator.
template <bool Max, class T, class I, int N> LITZ_FN Found<T> fold_arg(Vec<T, N> v, Vec<I, N> i) {
  Found<T> best{v[0], i[0]};
  for (int j = 1; j < N; j++) take<Max>(best.value, best.at, T(v[j]), i64(i[j]));
  return best;
}
// ---- mean and sum of squared deviations m2 of na values, joined by those of nb more (Chan et al.)

template <class V> LITZ_FN void chan(V& mean, V& m2, double na, V mean_b, V m2_b, double nb) {
  if (nb == 0) return;
  const double part = nb / (na + nb);
  const V delta = mean_b - mean;
  mean = mean + delta * V(part);
  m2 = m2 + m2_b + delta * delta * V(na * part);
}
// The mean of no values is nan.
template <class V> LITZ_FN V mean_of(V mean, double n) { return n == 0 ? V(nan64) : mean; }

}  // namespace litz
