/* Reports the coverage of code compiled by gcc to libFuzzer.
 *
 * libFuzzer is guided by counters that clang compiles into each function; gcc's -fsanitize-coverage=trace-pc
 * calls a function at each edge instead. This is that function, with its own counters, which are registered
 * with libFuzzer. Comparisons (trace-cmp) have the same form in both compilers and are passed on.
 *
 * Preloaded before the sanitizers' libraries, whose own functions of these names do nothing. libFuzzer sees
 * nothing before cyp_fuzz_attach() is called.
 */
#include <stdint.h>

/* libFuzzer scans all counters after each input: more counters cost more than a few collisions. */
#define COUNTERS (1 << 13)

static uint8_t counters[COUNTERS] __attribute__((aligned(64)));

typedef void (*init_function)(uint8_t *, uint8_t *);
typedef void (*cmp8_function)(uint64_t, uint64_t);
typedef void (*cmp4_function)(uint32_t, uint32_t);
typedef void (*cmp2_function)(uint16_t, uint16_t);
typedef void (*cmp1_function)(uint8_t, uint8_t);
typedef void (*switch_function)(uint64_t, uint64_t *);

static struct {
    cmp1_function cmp1, const_cmp1;
    cmp2_function cmp2, const_cmp2;
    cmp4_function cmp4, const_cmp4;
    cmp8_function cmp8, const_cmp8;
    switch_function of_switch;
} to;

/* functions: init, then cmp1, cmp2, cmp4, cmp8, then the four const_cmp, then switch. */
void cyp_fuzz_attach(void **functions) {
    ((init_function)functions[0])(counters, counters + COUNTERS);
    to.cmp1 = (cmp1_function)functions[1];
    to.cmp2 = (cmp2_function)functions[2];
    to.cmp4 = (cmp4_function)functions[3];
    to.cmp8 = (cmp8_function)functions[4];
    to.const_cmp1 = (cmp1_function)functions[5];
    to.const_cmp2 = (cmp2_function)functions[6];
    to.const_cmp4 = (cmp4_function)functions[7];
    to.const_cmp8 = (cmp8_function)functions[8];
    to.of_switch = (switch_function)functions[9];
}

/* For code that is written in Python. */
uint8_t *cyp_fuzz_counters(void) { return counters; }

void __sanitizer_cov_trace_pc(void) {
    uintptr_t pc = (uintptr_t)__builtin_return_address(0);
    /* Fibonacci hashing of the bits that do not change with a library's load address: pages are 4 KiB or more. */
    uint8_t *counter = &counters[(uint32_t)((uint32_t)pc * 2654435769u) >> (32 - 13)];
    /* Saturates: a counter that wraps to 0 would mean that the edge was never taken. */
    *counter += *counter != 255;
}

/* These end in jumps, not calls, so that libFuzzer sees the comparison's address as its caller. */
#define PASS(name, member, type)                                                                             \
    void name(type a, type b) {                                                                              \
        if (to.member)                                                                                       \
            to.member(a, b);                                                                                 \
    }
PASS(__sanitizer_cov_trace_cmp1, cmp1, uint8_t)
PASS(__sanitizer_cov_trace_cmp2, cmp2, uint16_t)
PASS(__sanitizer_cov_trace_cmp4, cmp4, uint32_t)
PASS(__sanitizer_cov_trace_cmp8, cmp8, uint64_t)
PASS(__sanitizer_cov_trace_const_cmp1, const_cmp1, uint8_t)
PASS(__sanitizer_cov_trace_const_cmp2, const_cmp2, uint16_t)
PASS(__sanitizer_cov_trace_const_cmp4, const_cmp4, uint32_t)
PASS(__sanitizer_cov_trace_const_cmp8, const_cmp8, uint64_t)

void __sanitizer_cov_trace_switch(uint64_t value, uint64_t *cases) {
    if (to.of_switch)
        to.of_switch(value, cases);
}
/* gcc calls these for comparisons of floating-point numbers; libFuzzer has no such functions. */
void __sanitizer_cov_trace_cmpf(float a, float b) { (void)a, (void)b; }
void __sanitizer_cov_trace_cmpd(double a, double b) { (void)a, (void)b; }
