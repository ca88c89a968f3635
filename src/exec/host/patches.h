// A convolution whose patches lie beside each other: pictures seen as rows of patches, results as rows of features. For
// the host's kernels and the device's.
#pragma once

#include "exec/host/args.h"

namespace dsplan::exec::host {

// [B, C, H, W] seen as [B, rows, columns, C, h, w] of patches that fill the picture.
[[nodiscard]] inline dsplan_tensor patches_of(const dsplan_tensor& picture, const dsplan_tensor& patch) {
  expect(picture.rank == 4 && patch.rank == 4 && picture.dims[1] == patch.dims[1], "patches of other channels");
  expect(picture.dims[2] % patch.dims[2] == 0 && picture.dims[3] % patch.dims[3] == 0, "patches do not fill a picture");
  dsplan_tensor seen = picture;
  seen.rank = 6;
  const std::int64_t dims[] = {
      picture.dims[0], picture.dims[2] / patch.dims[2], picture.dims[3] / patch.dims[3], patch.dims[1], patch.dims[2],
      patch.dims[3]};
  const std::int64_t strides[] = {picture.strides[0],
                                  picture.strides[2] * patch.dims[2],
                                  picture.strides[3] * patch.dims[3],
                                  picture.strides[1],
                                  picture.strides[2],
                                  picture.strides[3]};
  std::copy(dims, dims + 6, seen.dims);
  std::copy(strides, strides + 6, seen.strides);
  return seen;
}

// [B, F, rows, columns] seen as [B, rows, columns, F].
[[nodiscard]] inline dsplan_tensor by_place(const dsplan_tensor& made) {
  expect(made.rank == 4, "a convolution makes four dimensions");
  dsplan_tensor seen = made;
  for (std::int32_t d = 1; d < 4; ++d) {
    const std::int32_t from = d == 3 ? 1 : d + 1;
    seen.dims[d] = made.dims[from];
    seen.strides[d] = made.strides[from];
  }
  return seen;
}

// The patches one after another, and the features of each.
struct PatchRows {
  dsplan_tensor patches;
  dsplan_tensor features;
  std::int64_t pixels;  // Of a patch.
  std::int64_t width;   // Features.
  std::int64_t count;
};

[[nodiscard]] inline PatchRows patch_rows(const dsplan_tensor& picture, const dsplan_tensor& weight,
                                          const dsplan_tensor& made) {
  const std::int64_t width = weight.dims[0];
  const std::int64_t pixels = count_of(weight) / width;
  const PatchRows rows{patches_of(picture, weight), by_place(made), pixels, width, count_of(made) / width};
  expect(last_of(rows.features) == width && rows.count == count_of(rows.patches) / pixels, "patches and features");
  return rows;
}

}  // namespace dsplan::exec::host
