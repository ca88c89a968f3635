/* A library that is no backend. */
__attribute__((visibility("default"))) int dsplan_something_else(void);
int dsplan_something_else(void) { return 1; }
