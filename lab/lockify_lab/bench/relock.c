/*
 * What a lock and its unlock cost on the node that masters it: through libdlm, on the kernel's lock
 * manager or on Lockify, whichever library is loaded. Prints pairs per second and the 50th and the
 * 99th percentile of a pair's time in microseconds. Linked with libdlm_lt a call does its own
 * waiting; with libdlm (WITH_THREAD) the library's thread is told, and wakes the caller.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>

#include <libdlm.h>

#define NAME "again"
#define MOST (1 << 20)

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void must(const char *what, int status, const struct dlm_lksb *lksb)
{
	if (status || lksb->sb_status) {
		fprintf(stderr, "%s: %d, status %d\n", what, status, lksb->sb_status);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	static uint64_t times[MOST];
	struct dlm_lksb held = { 0 }, lock = { 0 };
	uint64_t begin, end, last, length;
	dlm_lshandle_t ls;
	size_t count = 0;

	if (argc != 2 || !(length = atof(argv[1]) * 1e9)) {
		fprintf(stderr, "usage: %s SECONDS\n", argv[0]);
		return 2;
	}
	ls = dlm_create_lockspace("relock", 0600);
	if (!ls) {
		perror("dlm_create_lockspace");
		return 1;
	}
#ifdef WITH_THREAD
	if (dlm_ls_pthread_init(ls)) {
		perror("dlm_ls_pthread_init");
		return 1;
	}
#endif
	/* Keeps this node the name's master. */
	must("lock NL", dlm_ls_lock_wait(ls, LKM_NLMODE, &held, 0, NAME, strlen(NAME), 0, NULL, NULL, NULL),
	     &held);
	begin = last = now();
	do {
		must("lock EX", dlm_ls_lock_wait(ls, LKM_EXMODE, &lock, 0, NAME, strlen(NAME), 0, NULL, NULL,
						 NULL), &lock);
		dlm_ls_unlock_wait(ls, lock.sb_lkid, 0, &lock);
		if (lock.sb_status != EUNLOCK) {
			fprintf(stderr, "unlock: status %d\n", lock.sb_status);
			return 1;
		}
		end = now();
		times[count++] = end - last;
		last = end;
	} while (end - begin < length && count < MOST);
	qsort(times, count, sizeof(times[0]), by_size);
	printf("%f %f %f\n", count * 1e9 / (end - begin), times[count / 2] / 1e3, times[count * 99 / 100] / 1e3);
	dlm_release_lockspace("relock", ls, 1);
	return 0;
}
