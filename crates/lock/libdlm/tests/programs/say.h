/* What the test programs share: printing results by name, so that two lock managers' outputs can be
 * compared line by line. */
#ifndef SAY_H
#define SAY_H

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include <libdlm.h>

/* Longer than anything takes: a test that waits this long has failed. */
#define PATIENCE_MS 30000

static inline const char *word(int e)
{
	switch (e) {
	case 0: return "0";
	case EAGAIN: return "EAGAIN";
	case EBADF: return "EBADF";
	case EBUSY: return "EBUSY";
	case EDEADLK: return "EDEADLK";
	case EEXIST: return "EEXIST";
	case EINVAL: return "EINVAL";
	case ENOENT: return "ENOENT";
	case ENOSYS: return "ENOSYS";
	case ENOTCONN: return "ENOTCONN";
	case ETIMEDOUT: return "ETIMEDOUT";
	case ECANCEL: return "ECANCEL";
	case EUNLOCK: return "EUNLOCK";
	case EINPROG: return "EINPROG";
	}
	static char other[32];
	snprintf(other, sizeof(other), "%d", e);
	return other;
}

/* A call's result. */
static inline void said(const char *what, int ret)
{
	int e = errno;

	printf("%s: %d", what, ret);
	if (ret < 0)
		printf(" %s", word(e));
	printf("\n");
	fflush(stdout);
	errno = e;
}

/* A call's result and what its status block says after the operation's end. */
static inline void ended(const char *what, int ret, const struct dlm_lksb *l)
{
	int e = errno;

	printf("%s: %d", what, ret);
	if (ret < 0)
		printf(" %s", word(e));
	printf(", status %s, flags %x\n", word(l->sb_status), l->sb_flags);
	fflush(stdout);
}

static inline void must(const char *what, int fine)
{
	if (fine)
		return;
	printf("%s failed: %s\n", what, strerror(errno));
	exit(1);
}

static const char *const modes[] __attribute__((unused)) = { "NL", "CR", "CW", "PR", "PW", "EX" };

#endif
