#include "core/cudnn/convolution_scratch.h"

#include <algorithm>
#include <string>

#include "core/format.h"
#include "core/text/split.h"
#include "core/text/whole_numbers.h"

namespace dsplan {
namespace {

std::string_view name_of(DType dtype) {
  if (dtype == DType::BFloat16) return "bf16";
  if (dtype == DType::Float16) return "fp16";
  return dtype == DType::Float32 ? "fp32" : std::string_view{};
}

std::string_view name_of(ConvolutionKernel kernel) {
  if (kernel == ConvolutionKernel::Forward) return "forward";
  return kernel == ConvolutionKernel::InputGradient ? "input" : "weight";
}

// "3x224x224", from dimension `first` on.
std::string sizes(const Shape& shape, std::uint8_t first) {
  std::string told;
  for (std::uint8_t i = first; i < shape.rank; ++i) {
    if (i > first) told += 'x';
    told += std::to_string(shape.dims[i]);
  }
  return told;
}

std::int64_t product(const Shape& shape, std::uint8_t first) {
  std::int64_t all = 1;
  for (std::uint8_t i = first; i < shape.rank; ++i) all = checked_mul(all, shape.dims[i]);
  return all;
}

// What a run's letter stands for. Tensors are copied place by place, with channels filled up to 16 bytes: t, all
// three (of one place the result lies so anyway); a, all three whatever it is; v, image and weight; u, those without
// what is filled up; =, nothing.
std::int64_t base_of(char letter, DType dtype, const Shape& image, const Shape& weight, const Shape& made) {
  const std::int64_t size = bytes_per_element(dtype);
  const std::int64_t few = 16 / size;
  const std::int64_t channels = round_up(weight.dims[1], few);
  const std::int64_t x = checked_mul(image.dims[0], checked_mul(channels, product(image, 2)));
  const std::int64_t w = checked_mul(weight.dims[0], checked_mul(channels, product(weight, 2)));
  switch (letter) {
    case 't': return size * (x + w + (product(made, 2) > 1 ? product(made, 0) : 0));
    case 'a': return size * (x + w + product(made, 0));
    case 'v': return size * (x + w);
    case 'u': return size * (product(image, 0) + product(weight, 0));
    default: return 0;
  }
}

struct Run {
  std::int64_t first = 0;
  std::int64_t last = 0;
  std::int64_t step = 1;
  char letter = '=';
  std::int64_t bytes = 0;
};

Run read_run(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view counts = text.substr(0, colon);
  const std::size_t dash = counts.find('-');
  const std::size_t slash = counts.find('/');
  const auto number = [](std::string_view digits) { return whole_number(digits).value_or(0); };
  Run run;
  run.first = run.last = number(counts.substr(0, dash));
  if (dash != std::string_view::npos) run.last = number(counts.substr(dash + 1, slash - dash - 1));
  if (slash != std::string_view::npos) run.step = number(counts.substr(slash + 1));
  run.letter = text[colon + 1];
  run.bytes = number(text.substr(colon + 2));
  return run;
}

}  // namespace

std::int64_t cudnn_with(const Version& torch) { return torch.major == 2 && torch.minor == 11 ? 919 : 0; }

std::optional<Bytes> convolution_workspace(ConvolutionKernel kernel, DType dtype, const Shape& image,
                                           const Shape& weight, const Shape& made, const DeviceThreads& device,
                                           std::int64_t cudnn) {
  const std::string key =
      formatted("{}.{} {}/{} {} {} {} {} {}: ", cudnn / 100, cudnn % 100, device.capability, device.multiprocessors,
                name_of(dtype), sizes(image, 1), sizes(weight, 0), sizes(made, 2), name_of(kernel));
  const std::span<const std::string_view> rows = convolution_rows();
  const auto row = std::lower_bound(rows.begin(), rows.end(), std::string_view(key));
  if (row == rows.end() || !row->starts_with(key)) return std::nullopt;
  for (const std::string_view text : split(row->substr(key.size()), ' ')) {
    const Run run = read_run(text);
    const std::int64_t count = image.dims[0];
    if (count < run.first || count > run.last || (count - run.first) % run.step != 0) continue;
    return Bytes(base_of(run.letter, dtype, image, weight, made) + run.bytes);
  }
  return std::nullopt;
}

bool convolves_channels_apart(const Shape& image, const Shape& weight) {
  return weight.dims[1] == 1 && image.dims[1] > 1 && weight.dims[weight.rank - 1U] % 2 == 0;
}

}  // namespace dsplan
