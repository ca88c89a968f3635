// What the pages share.
#pragma once

#include <string>
#include <string_view>

#include "core/format.h"
#include "report/page_parts.h"

namespace dsplan {

// Text between tags, or within quotes.
[[nodiscard]] std::string in_html(std::string_view text);

// Up to the body's beginning.
[[nodiscard]] inline std::string page_begin(std::string_view title) {
  return formatted(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\"/>\n<title>{}</title>\n<style>\n{}</style>\n</head>\n<body>\n",
      in_html(title), kPageStyle);
}

}  // namespace dsplan
