// A call that nobody has written: it does nothing, says that it is done, and is counted. Where somebody writes it, that
// one is taken: stubs are weak.
#pragma once

#include "dry/ledger.h"

#define DSPLAN_DRY_STUB(name)                                           \
  extern "C" __attribute__((weak, visibility("default"))) long name() { \
    static dsplan_dry_call call{#name, nullptr, {0}, {nullptr}};        \
    dsplan_dry_called(&call);                                           \
    return 0;                                                           \
  }
