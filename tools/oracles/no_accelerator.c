// The answers of a torch build that has no accelerator, put before torch's own with LD_PRELOAD. A CUDA build asks the
// driver for the streams of each device before every backward pass, which fails where there is no driver, although fake
// tensors never touch a device.
//
//     cc -shared -fPIC -o no_accelerator.so tools/oracles/no_accelerator.c

// std::optional<c10::DeviceType> at::accelerator::getAccelerator(bool): none.
unsigned short _ZN2at11accelerator14getAcceleratorEb(_Bool checked) {
  (void)checked;
  return 0;
}

// bool at::accelerator::isAccelerator(c10::DeviceType): false.
_Bool _ZN2at11accelerator13isAcceleratorEN3c1010DeviceTypeE(signed char device) {
  (void)device;
  return 0;
}
