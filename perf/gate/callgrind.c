/* Lets a Python program control what callgrind counts: valgrind's client requests as functions for ctypes.
 *
 * Outside valgrind they do nothing. The header comes with valgrind. The requests are macros, so they must be
 * compiled into a library.
 */
#include <valgrind/callgrind.h>

/* Starts instrumentation, which is slow. Before, code is only translated. */
void gate_instrument(void) { CALLGRIND_START_INSTRUMENTATION; }

/* Starts or stops counting. */
void gate_toggle(void) { CALLGRIND_TOGGLE_COLLECT; }

/* Writes the counts to a new file that contains this name, and resets them to zero. */
void gate_dump(const char *name) { CALLGRIND_DUMP_STATS_AT(name); }
