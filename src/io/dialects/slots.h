// Which option a file belongs to, for files that stand where another kind is wanted.
#pragma once

#include <cstdint>
#include <string>

#include "core/document.h"

namespace dsplan {

enum class FileSlot : std::uint8_t { Model, DeepSpeed, Training };

// Refuses a file of which the keys say that it is of another slot than `wanted`, and says where it belongs. What is of
// no slot passes, for its own reader to judge.
void refuse_other_slot(const Document& document, FileSlot wanted);
// The same for the text of a file that its reader could not read at all: as YAML it may be a training file. Returns
// where it is of no other slot.
void refuse_other_slot(const std::string& path, const std::string& text, FileSlot wanted);

}  // namespace dsplan
