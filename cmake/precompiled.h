// What nearly every file of the house includes; see DSPLAN_PRECOMPILE in CMakeLists.txt. Standard headers, and the
// nouns that seldom change: a change here compiles everything anew.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "core/error.h"
#include "core/format.h"
#include "core/graph.h"
#include "core/job.h"
#include "core/model.h"
#include "core/schedule.h"
#include "core/units.h"
