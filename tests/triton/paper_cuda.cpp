// A CUDA device for PyTorch's autograd on a machine without one: nothing runs on it.
//
// Fake tensors on CUDA need no GPU, but autograd asks for the stream that a node runs on and records
// events, and dispatch asks the hooks whether there is cuDNN.  A CPU build answers neither; a CUDA
// build asks a driver that is not there.  ``exchange`` puts these stand-ins in the place of what
// answers and, called again, puts that back.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <utility>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;
constexpr auto CUDA = c10::DeviceType::CUDA;

struct Guard final : c10::impl::NoOpDeviceGuardImpl<CUDA> {
  Device getDevice() const override { return Device(CUDA, 0); }
  Device exchangeDevice(Device) const override { return Device(CUDA, 0); }
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, getDevice()); }
  Stream exchangeStream(Stream) const noexcept override { return getStream(getDevice()); }
  void record(void**, const Stream&, DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
};

struct Hooks final : at::CUDAHooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return false; }
  void init() const override {}
  bool hasCuDNN() const override { return true; }
  bool compiledWithCuDNN() const override { return true; }
  bool supportsDilatedConvolutionWithCuDNN() const override { return true; }
  bool supportsDepthwiseConvolutionWithCuDNN() const override { return true; }
  bool supportsBFloat16ConvolutionWithCuDNNv8() const override { return true; }
  bool supportsBFloat16RNNWithCuDNN() const override { return true; }
  long versionCuDNN() const override { return 91900; }
  long versionRuntimeCuDNN() const override { return 91900; }
  double batchnormMinEpsilonCuDNN() const override { return 1e-5; }
};

const Guard guard;
const Hooks hooks;
const c10::impl::DeviceGuardImplInterface* other_guard = &guard;
// PyTorch asks for its hooks once and holds the reference; an object's class is in its first word.
const void* other_class = *reinterpret_cast<const void* const*>(&hooks);

}  // namespace

extern "C" void exchange() {
  auto& slot = c10::impl::device_guard_impl_registry[static_cast<size_t>(CUDA)];
  other_guard = slot.exchange(other_guard);
  std::swap(*(const void**)&at::detail::getCUDAHooks(), other_class);
}
