#pragma once
// A device, a driver library or another process has failed: exit code 3.

#include <stdexcept>

namespace qplan {

class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class OutOfDeviceMemory : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

}  // namespace qplan
