// Pictures in pixels.
#pragma once

#include <string>

namespace dsplan {

// PNG of an SVG picture, pixel for pixel of its own size. librsvg and cairo draw it; they are loaded by this alone.
// Refused where they are not installed, or do not understand the picture.
[[nodiscard]] std::string png_of(const std::string& svg);

}  // namespace dsplan
