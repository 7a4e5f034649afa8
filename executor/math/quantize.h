#pragma once
// Arrays in fp8 with one scale each.

#include "executor/math/matrix.h"
#include "models/dtype.h"

namespace qplan::math {

// The power of two that brings the largest of |x| into (7/8, 7/4]; between 2^-100 and 2^126. Both
// formats' largest number is 7/4 of a power of two (448 = 7/4 2^8, 57344 = 7/4 2^15), so one scale
// serves both, and the largest of several arrays' scales is that of them all.
float quantization_scale(ConstFloats x);

// Powers of two in a format's largest number: 8 and 15. A number q of the format stands for
// q scale 2^-exponent.
int quantized_exponent(DType format);

// x as the format's numbers, not yet rounded.
void scale_to(DType format, float scale, Floats x);

// What products of numbers of two such arrays are multiplied by.
float product_scale(DType a, float a_scale, DType b, float b_scale);

// to[cols, rows] = from[rows, cols], whatever they hold.
void transpose(ConstMatrix from, Matrix to);

}  // namespace qplan::math
