/* Lets a Python program say what callgrind counts: valgrind's client requests as functions for ctypes.
 *
 * Outside valgrind they do nothing. The header comes with valgrind; the requests are part of the program
 * that is run, hence compiled here.
 */
#include <valgrind/callgrind.h>

/* From here on code is instrumented, which is slow; before, it is only translated. */
void gate_instrument(void) { CALLGRIND_START_INSTRUMENTATION; }

/* Begins to count, or ends it. */
void gate_toggle(void) { CALLGRIND_TOGGLE_COLLECT; }

/* Writes what was counted to a file of its own, which names this; counting begins anew at zero. */
void gate_dump(const char *name) { CALLGRIND_DUMP_STATS_AT(name); }
