// Places of values in documents.
#pragma once

#include "core/document.h"
#include "core/inputs.h"

namespace dsplan {

[[nodiscard]] inline Place place_at(const Document& document, std::size_t offset) {
  Diagnostic at = document.at(offset, {});
  return {std::move(at.path), at.line, at.column, std::move(at.source_line)};
}

}  // namespace dsplan
