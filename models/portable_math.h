#pragma once
// Logarithms and powers of which every machine makes the same bits, so that an answer does too. A C
// library promises a last digit that is nearly right, and which of two it is depends on the library
// (glibc; musl in a browser) and, in glibc, on whether the processor has fused multiply-adds. These
// are made of +, -, * and / alone, which IEEE 754 fixes; not of float functions, whose results are
// fixed by being rounded from double.

namespace qplan::portable {

// Of positive numbers, to within one unit of the last place (tests/models/portable_math_test.cpp).
double log(double x);
double log2(double x);
double exp(double x);
// By exp(exponent * log(base)), whose error grows with that product.
double pow(double base, double exponent);
// log(Gamma(x)) of x > 0.
double lgamma(double x);

}  // namespace qplan::portable
