/* The daemon goes away while locks are held: Lockify only. */
#include "say.h"

static dlm_lshandle_t ls;
static int basts;

static void cast(void *arg)
{
	struct dlm_lksb *l = arg;

	printf("cast: %s\n", word(l->sb_status));
}

static void bast(void *arg)
{
	(void)arg;
	basts++;
}

int main(void)
{
	struct dlm_lksb held = { 0 }, idle = { 0 }, waits = { 0 };
	int ret;

	ls = dlm_create_lockspace("loss", 0600);
	must("dlm_create_lockspace", ls != NULL);
	ended("lock", dlm_ls_lock_wait(ls, LKM_EXMODE, &held, 0, "a", 1, 0, NULL, bast, NULL), &held);
	ended("lock", dlm_ls_lock_wait(ls, LKM_NLMODE, &idle, 0, "a", 1, 0, NULL, bast, NULL), &idle);
	said("wait", dlm_ls_lock(ls, LKM_PRMODE, &waits, 0, "a", 1, 0, cast, &waits, NULL, NULL));
	basts = 0;

	/* Until there is nothing more to tell. */
	do {
		struct pollfd p = { .fd = dlm_ls_get_fd(ls), .events = POLLIN };

		must("poll", poll(&p, 1, PATIENCE_MS) == 1);
		ret = dlm_dispatch(p.fd);
	} while (ret == 0);
	said("dispatch", ret);
	/* One for the waiter, perhaps, and one for the loss. */
	printf("told: %s\n", basts >= 1 && basts <= 2 ? "yes" : "no");
	said("convert", dlm_ls_lock_wait(ls, LKM_PRMODE, &held, LKF_CONVERT, NULL, 0, 0, NULL, NULL,
					 NULL));
	said("unlock", dlm_ls_unlock_wait(ls, held.sb_lkid, 0, &held));
	said("lock", dlm_ls_lock_wait(ls, LKM_EXMODE, &held, 0, "b", 1, 0, NULL, NULL, NULL));
	said("purge", dlm_ls_purge(ls, 0, 0));
	said("close", dlm_close_lockspace(ls));
	printf("open: %s\n", dlm_open_lockspace("loss") ? "a lockspace" : strerror(errno));
	return 0;
}
