// exp in terms of `Simd`, and the names that all kernels use for it. Included once per instruction set, after its simd/
// header, inside no namespace.
#pragma once

namespace rooftree::ROOFTREE_ISA {

using F = Simd::F;
constexpr int N = Simd::N;

// Below it, exp is no normal number.
constexpr float kExpLow = -87.33f;

// exp(x) = p * 2^n for x within [kExpLow, 89], by Cody-Waite reduction and a degree-6 polynomial.
static inline F exp_parts(F clamped, F& n) {
    n = Simd::round(clamped * Simd::set1(1.44269504f));
    F r = Simd::fma(n, Simd::set1(-0.693359375f), clamped);
    r = Simd::fma(n, Simd::set1(2.12194440e-4f), r);
    F p = Simd::set1(1.9875691500e-4f);
    p = Simd::fma(p, r, Simd::set1(1.3981999507e-3f));
    p = Simd::fma(p, r, Simd::set1(8.3334519073e-3f));
    p = Simd::fma(p, r, Simd::set1(4.1665795894e-2f));
    p = Simd::fma(p, r, Simd::set1(1.6666665459e-1f));
    p = Simd::fma(p, r, Simd::set1(5.0000001201e-1f));
    return Simd::fma(p, r * r, r) + Simd::set1(1.0f);
}

// exp with a relative error below 2e-7; exactly 1 at 0, exactly 0 below the smallest normal result (-inf included),
// infinite above 88.4.
static inline F vexp(F x) {
    const F low = Simd::set1(kExpLow);
    F n;
    const F p = exp_parts(Simd::min(Simd::max(x, low), Simd::set1(89.0f)), n);
    return Simd::zero_where_less(x, low, Simd::scale_by_power(p, n));
}

// The same bits where x is never above 0, with less work.
static inline F vexp_of_differences(F x) {
    const F low = Simd::set1(kExpLow);
    F n;
    const F p = exp_parts(Simd::max(x, low), n);
    return Simd::zero_where_less(x, low, Simd::scale_to_normal(p, n));
}

static inline float sexp(float x) {
    float lanes[N];
    Simd::store(lanes, vexp(Simd::set1(x)));
    return lanes[0];
}

}  // namespace rooftree::ROOFTREE_ISA
