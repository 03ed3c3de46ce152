// RMS norm of rows as a handler of XLA's foreign function interface. docs/own-ops.md compiles and calls it.
#include <cmath>
#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

static ffi::Error RmsNormImpl(float epsilon, ffi::Buffer<ffi::F32> x, ffi::ResultBuffer<ffi::F32> y) {
  auto dims = x.dimensions();
  if (dims.size() == 0) return ffi::Error::InvalidArgument("rms_norm needs rows, not a scalar");
  const int64_t width = dims.back();
  const int64_t count = x.element_count();
  for (int64_t start = 0; start < count; start += width) {
    double total = 0;
    for (int64_t i = 0; i < width; ++i) total += x.typed_data()[start + i] * x.typed_data()[start + i];
    const float factor = 1 / std::sqrt(total / width + epsilon);
    for (int64_t i = 0; i < width; ++i) y->typed_data()[start + i] = x.typed_data()[start + i] * factor;
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    RmsNorm, RmsNormImpl,
    ffi::Ffi::Bind().Attr<float>("epsilon").Arg<ffi::Buffer<ffi::F32>>().Ret<ffi::Buffer<ffi::F32>>());
