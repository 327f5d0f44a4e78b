// SPDX-License-Identifier: Apache-2.0
// The kernels, written once over compiler vectors and compiled once for each
// instruction set. The including file is compiled with that set's flags and defines
// before the #include, in smddp::reduce's unnamed namespace:
//   kVectorBytes                          width of a vector
//   WidenShorts(from)                     uint16 -> a vector of uint32
//   WidenHalf(from), NarrowHalf(to, v)    float16 <-> a vector of float32
//   StreamVector(to, from), Fence()       a store past the caches
//
// Nothing here may have external linkage, and no inline function of another header
// may be called: the linker keeps one copy of those, and it could be one that needs
// instructions the machine lacks. Hence builtins instead of the standard library.

namespace smddp::reduce {
namespace {

#define SMDDP_INLINE [[gnu::always_inline]] inline

template <class T, size_t kBytes = kVectorBytes>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kBytes)));
};
template <class T>
using Vector = typename VectorOf<T>::Type;

template <class V>
SMDDP_INLINE V LoadVector(const char* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof(V));
  return v;
}

template <class V>
SMDDP_INLINE void StoreVector(char* to, V v) {
  __builtin_memcpy(to, &v, sizeof(V));
}

// Element formats: how kVectors vectors of Lanes are read from and written to memory.

template <class T>
struct Plain {
  using Lane = T;
  static constexpr size_t kBytes = sizeof(T);
  static constexpr int kVectors = 1;
  SMDDP_INLINE static void Load(const char* from, Vector<T>* v) {
    *v = LoadVector<Vector<T>>(from);
  }
  SMDDP_INLINE static void Store(char* to, const Vector<T>* v) { StoreVector(to, *v); }
};

struct Half {
  using Lane = float;
  static constexpr size_t kBytes = 2;
  static constexpr int kVectors = 1;
  SMDDP_INLINE static void Load(const char* from, Vector<float>* v) {
    *v = WidenHalf(from);
  }
  SMDDP_INLINE static void Store(char* to, const Vector<float>* v) { NarrowHalf(to, *v); }
};

// bfloat16 is the upper half of float32. Rounds to nearest even; the lower half is left.
SMDDP_INLINE Vector<uint32_t> RoundToUpperHalf(Vector<float> v) {
  const auto bits = (Vector<uint32_t>)v;
  const Vector<uint32_t> quiet_nan = bits | 0x400000;
  return v == v ? bits + 0x7fff + ((bits >> 16) & 1) : quiet_nan;
}

struct Bfloat16 {
  using Lane = float;
  static constexpr size_t kBytes = 2;
  static constexpr int kVectors = 1;
  SMDDP_INLINE static void Load(const char* from, Vector<float>* v) {
    *v = (Vector<float>)((Vector<uint32_t>)WidenShorts(from) << 16);
  }
  SMDDP_INLINE static void Store(char* to, const Vector<float>* v) {
    using Shorts = VectorOf<uint16_t, kVectorBytes / 2>::Type;
    StoreVector(to, __builtin_convertvector(RoundToUpperHalf(*v) >> 16, Shorts));
  }
};

// The same format with even and odd elements in a vector each (on a little-endian
// machine): no lane changes its place, which costs less where both sides are bfloat16.
struct Bfloat16Pairs {
  using Lane = float;
  static constexpr size_t kBytes = 2;
  static constexpr int kVectors = 2;
  SMDDP_INLINE static void Load(const char* from, Vector<float>* v) {
    const auto bits = LoadVector<Vector<uint32_t>>(from);
    v[0] = (Vector<float>)(bits << 16);
    v[1] = (Vector<float>)(bits & 0xffff0000);
  }
  SMDDP_INLINE static void Store(char* to, const Vector<float>* v) {
    const Vector<uint32_t> even = RoundToUpperHalf(v[0]) >> 16;
    StoreVector(to, even | (RoundToUpperHalf(v[1]) & 0xffff0000));
  }
};

// Operators. Integers are summed as unsigned ones: they wrap.

struct Sum {
  template <class T>
  SMDDP_INLINE static Vector<T> Apply(Vector<T> a, Vector<T> b) {
    return a + b;
  }
};

// Max and min differ in the order and in which zero wins: max(-0, +0) is +0 and
// min(-0, +0) is -0, in either order. a + b is a NaN where one of them is.
template <bool kMax>
struct Extremum {
  template <class T>
  SMDDP_INLINE static Vector<T> Apply(Vector<T> a, Vector<T> b) {
    const Vector<T> ordered = (kMax ? a > b : a < b) ? a : b;
    constexpr bool kInteger = static_cast<T>(0.5) == 0;
    if constexpr (kInteger) {
      return ordered;
    } else {
      using Bits = decltype(a == b);
      const Vector<T> zero =
          kMax ? (Vector<T>)((Bits)a & (Bits)b) : (Vector<T>)((Bits)a | (Bits)b);
      const Vector<T> number = a == b ? zero : ordered;
      return ((a == a) & (b == b)) ? number : a + b;
    }
  }
};

// Elements that In loads and Out stores at a time.
template <class In>
constexpr size_t kGroup = kVectorBytes / sizeof(typename In::Lane) * In::kVectors;

// kUnroll groups of the result, from all inputs in order, in registers.
template <class Op, class In, class Out, int kUnroll>
SMDDP_INLINE void Step(const void* const* inputs, size_t input_count, size_t begin,
                       char* to) {
  using Lane = typename In::Lane;
  static_assert(In::kVectors == Out::kVectors);
  Vector<Lane> results[kUnroll * In::kVectors];
  const char* from = static_cast<const char*>(inputs[0]) + begin * In::kBytes;
#pragma GCC unroll 8
  for (int k = 0; k < kUnroll; ++k) {
    In::Load(from + k * kGroup<In> * In::kBytes, results + k * In::kVectors);
  }
  for (size_t i = 1; i < input_count; ++i) {
    from = static_cast<const char*>(inputs[i]) + begin * In::kBytes;
#pragma GCC unroll 8
    for (int k = 0; k < kUnroll; ++k) {
      Vector<Lane> next[In::kVectors];
      In::Load(from + k * kGroup<In> * In::kBytes, next);
#pragma GCC unroll 2
      for (int v = 0; v < In::kVectors; ++v) {
        Vector<Lane>& result = results[k * In::kVectors + v];
        result = Op::template Apply<Lane>(result, next[v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int k = 0; k < kUnroll; ++k) {
    Out::Store(to + k * kGroup<In> * Out::kBytes, results + k * In::kVectors);
  }
}

// The last elements, fewer than a group: the same arithmetic on padded copies.
template <class Op, class In, class Out>
void Tail(const void* const* inputs, size_t input_count, size_t begin, size_t count,
          char* to) {
  using Lane = typename In::Lane;
  Vector<Lane> result[In::kVectors];
  Vector<Lane> next[In::kVectors];
  const auto load = [=](size_t i, Vector<Lane>* v) {
    char padded[kVectorBytes] = {};
    const char* from = static_cast<const char*>(inputs[i]) + begin * In::kBytes;
    __builtin_memcpy(padded, from, count * In::kBytes);
    In::Load(padded, v);
  };
  load(0, result);
  for (size_t i = 1; i < input_count; ++i) {
    load(i, next);
    for (int v = 0; v < In::kVectors; ++v) {
      result[v] = Op::template Apply<Lane>(result[v], next[v]);
    }
  }
  char padded[kVectorBytes];
  Out::Store(padded, result);
  __builtin_memcpy(to, padded, count * Out::kBytes);
}

template <class Op, class In, class Out>
void Combine(const void* const* inputs, size_t input_count, size_t begin, size_t count,
             void* out) {
  constexpr int kUnroll = 4 / In::kVectors;
  constexpr size_t kStep = kUnroll * kGroup<In>;
  char* to = static_cast<char*>(out);
  size_t e = 0;
  for (; count - e >= kStep; e += kStep) {
    Step<Op, In, Out, kUnroll>(inputs, input_count, begin + e, to + e * Out::kBytes);
  }
  for (; count - e >= kGroup<In>; e += kGroup<In>) {
    Step<Op, In, Out, 1>(inputs, input_count, begin + e, to + e * Out::kBytes);
  }
  if (e < count) {
    Tail<Op, In, Out>(inputs, input_count, begin + e, count - e, to + e * Out::kBytes);
  }
}

// Reductions of floating-point types, with or without a change of width.
template <class Op>
CombineFn FindFloat(DType in, DType out) {
  using Float = Plain<float>;
  if (in == DType::kF16 && out == in) return Combine<Op, Half, Half>;
  if (in == DType::kF16 && out == DType::kF32) return Combine<Op, Half, Float>;
  if (in == DType::kF32 && out == DType::kF16) return Combine<Op, Float, Half>;
  if (in == DType::kBF16 && out == in) return Combine<Op, Bfloat16Pairs, Bfloat16Pairs>;
  if (in == DType::kBF16 && out == DType::kF32) return Combine<Op, Bfloat16, Float>;
  if (in == DType::kF32 && out == DType::kBF16) return Combine<Op, Float, Bfloat16>;
  if (in == DType::kF32 && out == in) return Combine<Op, Float, Float>;
  if (in == DType::kF64 && out == in) {
    return Combine<Op, Plain<double>, Plain<double>>;
  }
  return nullptr;
}

template <class Op, class T>
constexpr CombineFn kPlain = Combine<Op, Plain<T>, Plain<T>>;

CombineFn FindSum(DType in, DType out) {
  if (in != out) return FindFloat<Sum>(in, out);
  switch (in) {
    case DType::kS8:
    case DType::kU8:
      return kPlain<Sum, uint8_t>;
    case DType::kS16:
    case DType::kU16:
      return kPlain<Sum, uint16_t>;
    case DType::kS32:
    case DType::kU32:
      return kPlain<Sum, uint32_t>;
    case DType::kS64:
    case DType::kU64:
      return kPlain<Sum, uint64_t>;
    default:
      return FindFloat<Sum>(in, out);
  }
}

template <class Op>
CombineFn FindExtremum(DType in, DType out) {
  if (in != out) return FindFloat<Op>(in, out);
  switch (in) {
    case DType::kS8:
      return kPlain<Op, int8_t>;
    case DType::kS16:
      return kPlain<Op, int16_t>;
    case DType::kS32:
      return kPlain<Op, int32_t>;
    case DType::kS64:
      return kPlain<Op, int64_t>;
    case DType::kU8:
      return kPlain<Op, uint8_t>;
    case DType::kU16:
      return kPlain<Op, uint16_t>;
    case DType::kU32:
      return kPlain<Op, uint32_t>;
    case DType::kU64:
      return kPlain<Op, uint64_t>;
    default:
      return FindFloat<Op>(in, out);
  }
}

CombineFn FindCombine(ReduceOp op, DType in, DType out) {
  switch (op) {
    case ReduceOp::kSum:
      return FindSum(in, out);
    case ReduceOp::kMax:
      return FindExtremum<Extremum<true>>(in, out);
    case ReduceOp::kMin:
      return FindExtremum<Extremum<false>>(in, out);
  }
  return nullptr;
}

// How far ahead the source is fetched. Measured on AMD Zen: 512 bytes make one thread
// 1.2 times and two threads 1.5 times as fast as memcpy.
constexpr size_t kFetchAhead = 512;
constexpr size_t kCopyStep = 128;

void Copy(void* to, const void* from, size_t bytes) {
  char* target = static_cast<char*>(to);
  const char* source = static_cast<const char*>(from);
  size_t at = 0;
  for (; bytes - at >= kCopyStep; at += kCopyStep) {
    __builtin_prefetch(source + at + kFetchAhead, 0, 0);
    __builtin_prefetch(source + at + kFetchAhead + kCopyStep / 2, 0, 0);
    Vector<char> v[kCopyStep / kVectorBytes];
    for (size_t i = 0; i < kCopyStep / kVectorBytes; ++i) {
      v[i] = LoadVector<Vector<char>>(source + at + i * kVectorBytes);
    }
    for (size_t i = 0; i < kCopyStep / kVectorBytes; ++i) {
      StoreVector(target + at + i * kVectorBytes, v[i]);
    }
  }
  __builtin_memcpy(target + at, source + at, bytes - at);
}

// Ordinary stores up to the first whole vector and after the last one.
void Stream(void* to, const void* from, size_t bytes) {
  char* target = static_cast<char*>(to);
  const char* source = static_cast<const char*>(from);
  size_t head = -reinterpret_cast<uintptr_t>(target) % kVectorBytes;
  if (head > bytes) head = bytes;
  __builtin_memcpy(target, source, head);
  size_t at = head;
  for (; bytes - at >= kVectorBytes; at += kVectorBytes) {
    StreamVector(target + at, source + at);
  }
  __builtin_memcpy(target + at, source + at, bytes - at);
}

#undef SMDDP_INLINE

}  // namespace
}  // namespace smddp::reduce
