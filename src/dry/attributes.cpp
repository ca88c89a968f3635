#include <array>
#include <cstring>

#include "dry/cudart.h"

namespace dsplan::dry {
namespace {

struct Named {
  Result result;
  const char* name;
  const char* text;
};
constexpr Named kResults[] = {
    {kSuccess, "cudaSuccess", "no error"},
    {kInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {kOutOfMemory, "cudaErrorMemoryAllocation", "out of memory"},
    {kNotInitialized, "cudaErrorInitializationError", "initialization error"},
    {kInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {kInvalidSymbol, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {kMissingConfiguration, "cudaErrorMissingConfiguration", "__global__ function call is not configured"},
    {kInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {kNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {kNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {kInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {kInvalidHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {kDriverNotFound, "cudaErrorSymbolNotFound", "named symbol not found"},
    {kNotReady, "cudaErrorNotReady", "device not ready"},
    {kOutOfResources, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {kPeerAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {kAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {kNotRegistered, "cudaErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"},
    {kNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {kCaptureUnsupported, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {kCaptureUnmatched, "cudaErrorStreamCaptureUnmatched", "stream capture was not initiated in this stream"},
    {kUnknown, "cudaErrorUnknown", "unknown error"},
};

const Named& named(Result result) {
  for (const Named& row : kResults) {
    if (row.result == result) return row;
  }
  return kResults[std::size(kResults) - 1];
}

}  // namespace

const char* name_of(Result result) { return named(result).name; }
const char* text_of(Result result) { return named(result).text; }

int attribute_of(const Device& device, int attribute) {
  switch (attribute) {
    case 1:
    case 2:
    case 3: return Device::kThreadsPerBlock;  // In a block, along x, along y.
    case 4: return Device::kBlockZ;
    case 5: return Device::kGridX;
    case 6:
    case 7: return Device::kGridYZ;
    case 8: return static_cast<int>(Device::kSharedPerBlock);
    case 9: return 65536;        // Constant memory.
    case 10: return 32;          // A warp.
    case 11: return 2147483647;  // Pitch of a copy.
    case 12:
    case 82: return device.registers_per_block;
    case 13: return device.clock_khz;
    case 14:
    case 30: return 512;  // Alignment of textures and surfaces.
    case 16: return device.multiprocessors;
    case 31:
    case 41:
    case 19:
    case 78:
    case 83:
    case 95:
    case 99:
    case 115: return 1;  // What every device can.
    case 79:
    case 80:
    case 89:
    case 90:
    case 91:
    case 102: return 1;
    case 32: return 1;   // ECC.
    case 33: return 27;  // The bus.
    case 36: return device.memory_clock_khz;
    case 37: return device.bus_bits;
    case 38: return device.l2_bytes;
    case 39: return device.threads_per_multiprocessor;
    case 40: return 3;  // Copy engines.
    case 51: return 32;
    case 75: return device.major;
    case 76: return device.minor;
    case 81: return static_cast<int>(device.shared_per_multiprocessor);
    case 97: return static_cast<int>(device.shared_per_block_optin());
    case 106: return device.blocks_per_multiprocessor;
    case 108: return device.l2_bytes / 16 * 10;
    case 109: return 134213632;
    case 111: return static_cast<int>(Device::kSharedOfTheSystem);
    case 120: return device.major >= 9 ? 1 : 0;  // Clusters.
    case 121:
    case 125: return 1;
    case 134: return -1;  // No NUMA node.
    default: return 0;
  }
}

}  // namespace dsplan::dry
