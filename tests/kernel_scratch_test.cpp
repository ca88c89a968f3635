// What kernels take for themselves, as real PyTorch asked for it on the dry device (docs/dry-device.md).
#include "core/kernel_scratch.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "core/cudnn/convolution_scratch.h"

namespace {

using namespace dsplan;

const DeviceThreads kHopper{132, 2048, 90};
const DeviceThreads kAmpere{108, 2048, 80};
const DeviceThreads kAda{128, 1536, 89};
const DeviceThreads kBlackwell{148, 2048, 100};

// B, H, own heads of keys and values, S, D.
AttentionSizes sizes(std::int64_t batch, std::int64_t heads, std::int64_t kv_heads, std::int64_t seq,
                     std::int64_t width) {
  return {batch, heads, kv_heads, seq, seq, width};
}

TEST_CASE("a device's threads follow from its compute capability") {
  Hardware hardware;
  hardware.multiprocessors = 132;
  const auto of = [&](const char* architecture) {
    hardware.architecture = architecture;
    return device_threads(hardware);
  };
  CHECK(of("sm_90").capability == 90);
  CHECK(of("sm_103").per_multiprocessor == 2048);
  CHECK(of("sm_120").per_multiprocessor == 1536);
  CHECK(of("sm_75").per_multiprocessor == 1024);
  CHECK(of("gfx942").multiprocessors == 0);
  CHECK(of("gfx942").capability == 0);
}

TEST_CASE("flash attention divides keys where queries do not fill the device") {
  struct Row {
    AttentionSizes of;
    std::int64_t sums;
    std::int64_t output;
  };
  for (const Row& row :
       {Row{sizes(1, 32, 32, 256, 128), 65536, 8388608}, Row{sizes(1, 12, 12, 1024, 64), 196608, 12582912},
        Row{sizes(1, 8, 8, 300, 80), 28800, 2764800}, Row{sizes(1, 4, 4, 512, 256), 65536, 16777216},
        Row{sizes(1, 16, 16, 512, 64), 65536, 4194304}, Row{sizes(2, 8, 4, 256, 72), 32768, 3145728},
        Row{sizes(1, 32, 32, 128, 128), 0, 0}, Row{sizes(2, 12, 12, 500, 64), 0, 0},
        Row{sizes(1, 12, 12, 2048, 64), 0, 0}, Row{sizes(1, 32, 32, 512, 128), 0, 0}}) {
    INFO(row.of.heads << " heads of " << row.of.width << ", " << row.of.queries << " tokens");
    CHECK(flash_parts(row.of, kHopper).log_sum_exp == Bytes(row.sums));
    CHECK(flash_parts(row.of, kHopper).output == Bytes(row.output));
  }
  CHECK(flash_parts(sizes(1, 32, 32, 256, 128), {}).output == Bytes(0));  // No device is named.
}

TEST_CASE("the memory-efficient kernel's workspace, by width, dtype and device") {
  struct Row {
    AttentionSizes of;
    bool half;
    std::int64_t large;  // Bytes on devices with 164 KiB of shared memory and more.
    std::int64_t small;  // With 99.
  };
  for (const Row& row :
       {Row{sizes(1, 2, 2, 256, 64), true, 131200, 131200}, Row{sizes(1, 2, 2, 300, 64), true, 164000, 164000},
        Row{sizes(1, 2, 2, 256, 72), true, 262208, 262272}, Row{sizes(1, 2, 2, 256, 128), true, 262208, 786688},
        Row{sizes(1, 2, 2, 100, 128), true, 131104, 393344}, Row{sizes(1, 2, 2, 256, 136), true, 1441984, 1441984},
        Row{sizes(1, 2, 2, 256, 264), true, 2228544, 2228544},
        Row{sizes(1, 32, 32, 1024, 256), true, 58736640, 58736640},
        Row{sizes(8, 64, 64, 100, 256), true, 134250496, 134250496},
        Row{sizes(1, 32, 32, 4096, 128), true, 67125248, 79757312},
        Row{sizes(1, 2, 2, 256, 128), false, 262272, 262400}, Row{sizes(1, 2, 2, 300, 128), false, 393408, 328000},
        Row{sizes(1, 2, 2, 256, 264), false, 655680, 656000}, Row{sizes(1, 2, 2, 77, 64), false, 65600, 65600}}) {
    INFO(row.of.heads << " heads of " << row.of.width << ", " << row.of.queries << " tokens, half " << row.half);
    CHECK(efficient_backward_workspace(row.of, row.half, kHopper) == Bytes(row.large));
    CHECK(efficient_backward_workspace(row.of, row.half, kAmpere) == Bytes(row.large));
    CHECK(efficient_backward_workspace(row.of, row.half, {}) == Bytes(row.large));
    CHECK(efficient_backward_workspace(row.of, row.half, kAda) == Bytes(row.small));
    CHECK(efficient_backward_workspace(row.of, row.half, {0, 0, 0}) == Bytes(0));
  }
}

// gemma-4-31b's layers that see all, 1,777 tokens on an H100: 32 heads of 512 columns, after the log-sum-exp.
TEST_CASE("the memory-efficient kernel sums wide outputs in fp32") {
  CHECK(efficient_forward_workspace(sizes(1, 32, 32, 1777, 512), true, kHopper) == Bytes(116'457'472));
  CHECK(efficient_forward_workspace(sizes(1, 32, 32, 1777, 512), false, kHopper) == Bytes(0));
  CHECK(efficient_forward_workspace(sizes(1, 32, 32, 1777, 128), true, kHopper) == Bytes(0));
  CHECK(efficient_forward_workspace(sizes(1, 32, 32, 1777, 512), true, {0, 0, 0}) == Bytes(0));
  AttentionSizes latent = sizes(1, 16, 16, 3840, 192);
  latent.values = 128;  // deepseek-v2-lite: what is summed is as wide as the values.
  CHECK(efficient_forward_workspace(latent, true, kHopper) == Bytes(0));
}

TEST_CASE("cuDNN's workspaces, by device, groups and dropout") {
  struct Row {
    AttentionSizes of;
    bool dropout;
    std::int64_t hopper, blackwell, ampere;  // Backward.
    std::int64_t drawn;                      // Forward, on Blackwell.
  };
  for (const Row& row : {Row{sizes(2, 8, 8, 256, 64), false, 1065216, 1064960, 2113664, 0},
                         Row{sizes(2, 8, 2, 256, 64), false, 2113792, 2113664, 3162240, 0},
                         Row{sizes(2, 8, 2, 1000, 128), false, 16448256, 16448128, 24640128, 0},
                         Row{sizes(2, 8, 8, 1000, 64), true, 4160256, 6257280, 8256128, 2097280},
                         Row{sizes(2, 8, 8, 100, 64), true, 416256, 448896, 842112, 32896},
                         Row{sizes(1, 3, 3, 300, 64), true, 234256, 289424, 467600, 55424},
                         Row{sizes(1, 3, 3, 129, 64), true, 100876, 125324, 205196, 24704},
                         Row{sizes(1, 4, 2, 256, 64), true, 528640, 561280, 790656, 32896}}) {
    INFO(row.of.heads << " heads of " << row.of.width << ", " << row.of.queries << " tokens, dropout " << row.dropout);
    CHECK(cudnn_backward_workspace(row.of, row.dropout, kHopper) == Bytes(row.hopper));
    CHECK(cudnn_backward_workspace(row.of, row.dropout, kBlackwell) == Bytes(row.blackwell));
    CHECK(cudnn_backward_workspace(row.of, row.dropout, kAmpere) == Bytes(row.ampere));
    CHECK(cudnn_forward_workspace(row.of, row.dropout, kHopper) == Bytes(256));
    CHECK(cudnn_forward_workspace(row.of, row.dropout, kBlackwell) == Bytes(row.drawn));
    CHECK(cudnn_forward_workspace(row.of, row.dropout, kAmpere) == Bytes(0));
  }
}

TEST_CASE("cuDNN's workspace of a convolution is what it answered, and nobody's guess where it was not asked") {
  const Shape weight{1152, 3, 14, 14};
  const auto taken = [&](ConvolutionKernel kernel, std::int64_t count, const DeviceThreads& device,
                         std::int64_t cudnn = cudnn_with({2, 11, 0})) {
    return convolution_workspace(kernel, DType::BFloat16, Shape{count, 3, 384, 384}, weight, Shape{count, 1152, 27, 27},
                                 device, cudnn);
  };
  const auto forward = ConvolutionKernel::Forward;
  const auto back = ConvolutionKernel::WeightGradient;
  CHECK(taken(forward, 2, kHopper) == Bytes(11'690'512));
  CHECK(taken(back, 2, kHopper) == Bytes(11'692'440));
  CHECK(taken(back, 4, kHopper) == Bytes(41'444'496));
  CHECK(taken(forward, 2, kAmpere) == Bytes(11'690'512));
  CHECK_FALSE(taken(forward, 17, kHopper));  // Between two counts that were asked for.
  CHECK_FALSE(taken(forward, 2, {133, 2048, 90}));
  CHECK_FALSE(taken(forward, 2, {}));
  CHECK_FALSE(taken(forward, 2, kHopper, cudnn_with({2, 8, 0})));
  CHECK_FALSE(taken(ConvolutionKernel::InputGradient, 2, kHopper));
  // A larger picture takes another kernel, which needs none.
  CHECK(convolution_workspace(forward, DType::BFloat16, Shape{2, 3, 896, 896}, weight, Shape{2, 1152, 64, 64}, kHopper,
                              919) == Bytes(0));
}

TEST_CASE("the table of convolutions is sorted, and each row can be read") {
  const std::span<const std::string_view> rows = convolution_rows();
  CHECK(rows.size() > 1'000);
  CHECK(std::is_sorted(rows.begin(), rows.end()));
  for (const std::string_view row : rows) {
    CAPTURE(row);
    CHECK(row.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyz .:/-=") == std::string_view::npos);
    CHECK(row.starts_with("9.19 "));
  }
}

TEST_CASE("convolutions of channels apart are PyTorch's own where their width is even") {
  CHECK(convolves_channels_apart(Shape{2, 64, 100}, Shape{64, 1, 4}));
  CHECK_FALSE(convolves_channels_apart(Shape{2, 64, 100}, Shape{64, 1, 3}));
  CHECK_FALSE(convolves_channels_apart(Shape{2, 1, 100}, Shape{64, 1, 4}));
  CHECK_FALSE(convolves_channels_apart(Shape{2, 64, 100}, Shape{64, 64, 4}));
}

}  // namespace

// torch.cumsum of one row on the CUDA build of PyTorch 2.11: 256 and 100,000 of int32, 10,000 of int64.
TEST_CASE("a cumulative sum of one row takes a word for each tile") {
  CHECK(row_scan_scratch(256, Bytes(4)) == Bytes(1023));
  CHECK(row_scan_scratch(10'000, Bytes(4)) == Bytes(1023));
  CHECK(row_scan_scratch(100'000, Bytes(4)) == Bytes(1279));
  CHECK(row_scan_scratch(10'000, Bytes(8)) == Bytes(1279));
}
