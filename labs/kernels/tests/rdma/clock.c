/* Prints CLOCK_MONOTONIC, the processor's counter of the same moment, and how many counts wide that moment is.
 *
 * User-mode Linux runs programs on the host's processors, and its clock is the host's from another beginning on. So the
 * counter, which all see, tells by how much a node's clock differs from the host's. */
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

int main(void)
{
	unsigned long long best = ~0ULL, at = 0, time = 0;

	for (int i = 0; i < 5000; i++) {
		struct timespec now;
		unsigned int cpu;
		unsigned long long before = __rdtscp(&cpu);

		if (clock_gettime(CLOCK_MONOTONIC, &now) != 0)
			return 1;
		unsigned long long width = __rdtscp(&cpu) - before;

		if (width < best) {
			best = width;
			at = before + width / 2;
			time = now.tv_sec * 1000000000ULL + now.tv_nsec;
		}
	}
	printf("%llu %llu %llu\n", time, at, best);
	return 0;
}
