/* The same code in another file. */
#include "heap_reload_a.c"
