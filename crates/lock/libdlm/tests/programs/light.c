/* The differences of libdlm_lt: synchronous calls fail with the status, and callbacks run while
 * they wait. */
#include "say.h"

static dlm_lshandle_t ls;
static struct dlm_lksb held;

static void cast(void *arg)
{
	printf("  cast of %s\n", (const char *)arg);
}

static void bast(void *arg)
{
	printf("  bast of %s: it gives way\n", (const char *)arg);
	must("convert", dlm_ls_lock(ls, LKM_NLMODE, &held, LKF_CONVERT, NULL, 0, 0, cast, arg, NULL,
				    NULL) == 0);
}

int main(void)
{
	struct dlm_lksb a = { 0 }, b = { 0 };

	ls = dlm_create_lockspace("light", 0600);
	must("dlm_create_lockspace", ls != NULL);
	ended("lock a", dlm_ls_lock_wait(ls, LKM_PRMODE, &a, 0, "a", 1, 0, NULL, NULL, NULL), &a);
	ended("lock b NOQUEUE",
	      dlm_ls_lock_wait(ls, LKM_EXMODE, &b, LKF_NOQUEUE, "a", 1, 0, NULL, NULL, NULL), &b);
	ended("unlock a", dlm_ls_unlock_wait(ls, a.sb_lkid, 0, &a), &a);

	said("lock held", dlm_ls_lock(ls, LKM_EXMODE, &held, 0, "a", 1, 0, cast, "held", bast, NULL));
	/* Its callback lets this call go on. */
	ended("lock b", dlm_ls_lock_wait(ls, LKM_EXMODE, &b, 0, "a", 1, 0, NULL, NULL, NULL), &b);
	ended("unlock b", dlm_ls_unlock_wait(ls, b.sb_lkid, 0, &b), &b);
	ended("default", dlm_lock_wait(LKM_EXMODE, &b, 0, "a", 1, 0, NULL, NULL, NULL), &b);
	ended("default", dlm_unlock_wait(b.sb_lkid, 0, &b), &b);
	said("release", dlm_release_lockspace("light", ls, 1));
	return 0;
}
