// src/report/page/page.css and page.js, as the build puts them into the program.
#pragma once

#include <string_view>

namespace dsplan {

extern const std::string_view kPageStyle;
extern const std::string_view kPageScript;

}  // namespace dsplan
