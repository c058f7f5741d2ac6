/* The datatypes and what reduces them, element by element in the order of the ranks; small floating-point types are summed in double and
 * rounded once. */
#include "nccl.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace fake {
namespace {

/* A floating-point type of `Word`s with so many bits of exponent and mantissa. Finite: no infinities, one NaN (e4m3fn). */
template <class Word, int Exponent, int Mantissa, bool Finite = false> struct Small {
    Word bits;
    static constexpr int kBias = (1 << (Exponent - 1)) - 1, kTop = (1 << Exponent) - 1;
    static constexpr unsigned kSign = 1u << (Exponent + Mantissa), kOnes = (1u << Mantissa) - 1;

    double value() const {
        int exponent = (bits >> Mantissa) & kTop, mantissa = bits & kOnes;
        double sign = bits & kSign ? -1 : 1;
        if (exponent == kTop && (!Finite || mantissa == int(kOnes)))
            return !Finite && !mantissa ? sign * INFINITY : std::numeric_limits<double>::quiet_NaN();
        if (!exponent) return sign * std::ldexp(mantissa, 1 - kBias - Mantissa);
        return sign * std::ldexp(mantissa + (1 << Mantissa), exponent - kBias - Mantissa);
    }

    static Small of(double x) {
        Word sign = std::signbit(x) ? kSign : 0;
        Word special = Word((kTop << Mantissa) | (Finite || std::isnan(x) ? kOnes : 0));
        if (std::isnan(x) || std::isinf(x)) return {Word(sign | special)};
        int exponent;
        std::frexp(x, &exponent); // |x| in [0.5, 1) × 2^exponent
        int power = std::max(exponent - 1, 1 - kBias);
        auto units = int64_t(std::nearbyint(std::ldexp(std::fabs(x), Mantissa - power))); // to even
        // A mantissa that overflows carries into the exponent, as the bit patterns are ordered.
        int64_t pattern = units + (int64_t(power + kBias - 1) << Mantissa);
        int64_t largest = Finite ? (int64_t(kTop) << Mantissa) + kOnes - 1 : (int64_t(kTop) << Mantissa) - 1;
        return pattern > largest ? Small{Word(sign | special)} : Small{Word(sign | pattern)};
    }
};

template <class T> double in(T x) {
    if constexpr (std::is_arithmetic_v<T>) return double(x);
    else return x.value();
}

template <class T> T out(double x) {
    if constexpr (std::is_arithmetic_v<T>) return T(x);
    else return T::of(x);
}

/* Whole numbers wrap around; floating-point numbers wider than 32 bits keep their own precision. */
template <class T> T joined(const T *values, int n, int op, int ranks) {
    using Wide = std::conditional_t<std::is_integral_v<T>, std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>, double>;
    auto wide = [](T x) {
        if constexpr (std::is_integral_v<T>) return Wide(x);
        else return in(x);
    };
    using Wrapping = std::conditional_t<std::is_integral_v<T>, uint64_t, double>;
    auto total = Wrapping(wide(values[0]));
    Wide best = wide(values[0]);
    for (int i = 1; i < n; i++) {
        Wide next = wide(values[i]);
        total = op == ncclProd ? total * Wrapping(next) : total + Wrapping(next);
        if (op == ncclMax ? next > best : next < best) best = next;
    }
    if (op == ncclMax || op == ncclMin) total = Wrapping(best);
    if constexpr (std::is_integral_v<T>) return op == ncclAvg ? T(Wide(T(total)) / ranks) : T(total);
    else return out<T>(op == ncclAvg ? total / ranks : total);
}

template <class T> void all(char *to, const char *const *parts, int n, size_t count, int op, int ranks) {
    for (size_t i = 0; i < count; i++) {
        T values[kMaxRanks];
        for (int part = 0; part < n; part++) memcpy(&values[part], parts[part] + i * sizeof(T), sizeof(T));
        T result = joined(values, n, op, ranks);
        memcpy(to + i * sizeof(T), &result, sizeof(T));
    }
}

} // namespace

size_t width(int type) {
    constexpr size_t kWidths[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return kWidths[type];
}

void reduce(char *to, const char *const *parts, int n, size_t count, int type, int op, int ranks) {
    switch (type) {
    case ncclInt8: return all<int8_t>(to, parts, n, count, op, ranks);
    case ncclUint8: return all<uint8_t>(to, parts, n, count, op, ranks);
    case ncclInt32: return all<int32_t>(to, parts, n, count, op, ranks);
    case ncclUint32: return all<uint32_t>(to, parts, n, count, op, ranks);
    case ncclInt64: return all<int64_t>(to, parts, n, count, op, ranks);
    case ncclUint64: return all<uint64_t>(to, parts, n, count, op, ranks);
    case ncclFloat16: return all<Small<uint16_t, 5, 10>>(to, parts, n, count, op, ranks);
    case ncclFloat32: return all<float>(to, parts, n, count, op, ranks);
    case ncclFloat64: return all<double>(to, parts, n, count, op, ranks);
    case ncclBfloat16: return all<Small<uint16_t, 8, 7>>(to, parts, n, count, op, ranks);
    case ncclFloat8e4m3: return all<Small<uint8_t, 4, 3, true>>(to, parts, n, count, op, ranks);
    case ncclFloat8e5m2: return all<Small<uint8_t, 5, 2>>(to, parts, n, count, op, ranks);
    default: return;
    }
}

} // namespace fake
