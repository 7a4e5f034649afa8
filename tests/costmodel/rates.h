// Rates of work on a machine, as tables of measurements have them.
#pragma once

#include <cmath>

#include "costmodel/price/price.h"

namespace qplan {

inline double teraflops(const Work& work, const HardwareProfile& hardware) {
  return flops(work).value() / price(work, {&hardware, nullptr}).time.value() / 1e12;
}

inline double error_of(double predicted, double measured) {
  return std::abs(std::log(predicted / measured));
}

}  // namespace qplan
