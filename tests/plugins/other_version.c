/* A backend of a later version of the interface: the loader must not look at what stands behind the first words. */
#include "exec/backend.h"

__attribute__((visibility("default"))) const dsplan_backend* dsplan_backend_table(void);
const dsplan_backend* dsplan_backend_table(void) {
  static dsplan_backend table;
  table.version = DSPLAN_BACKEND_VERSION + 1;
  table.size = sizeof table + 8;
  return &table;
}
