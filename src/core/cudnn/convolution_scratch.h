// What cuDNN takes as workspace for a convolution: a table of what it answered, since it decides by heuristics of its
// own. Freed with the kernel's launch.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "core/kernel_scratch.h"
#include "core/model.h"
#include "core/training.h"

namespace dsplan {

// Which of its three kernels.
enum class ConvolutionKernel : std::uint8_t { Forward, InputGradient, WeightGradient };

// The release that a PyTorch brings, where it was asked, 919 for 9.19; else 0. Node::number of a convolution.
[[nodiscard]] std::int64_t cudnn_with(const Version& torch);

// Bytes; nullopt: nobody has asked for these shapes, this device (by capability and multiprocessors) or this release of
// cuDNN. Images are [count, channels, ...], weights [features, channels, ...].
[[nodiscard]] std::optional<Bytes> convolution_workspace(ConvolutionKernel kernel, DType dtype, const Shape& image,
                                                         const Shape& weight, const Shape& made,
                                                         const DeviceThreads& device, std::int64_t cudnn);
// Channel by channel, of an even width: PyTorch's own kernels, which take none (ConvUtils.h: use_cudnn_depthwise).
[[nodiscard]] bool convolves_channels_apart(const Shape& image, const Shape& weight);

// The table, sorted by key: "RELEASE CAPABILITY/MULTIPROCESSORS TYPE IMAGE WEIGHT OUT KERNEL: RUN...". A run,
// "FIRST[-LAST[/STEP]]:LETTERBYTES", holds for so many images at once.
[[nodiscard]] std::span<const std::string_view> convolution_rows();

}  // namespace dsplan
