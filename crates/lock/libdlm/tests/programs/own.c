/* Cases that libdlm and the kernel leave open, get wrong, or do not have: Lockify only. */
#include "say.h"

static dlm_lshandle_t ls;
static int casts;

static void cast(void *arg)
{
	(void)arg;
	casts++;
}

static int wait_for(struct dlm_lksb *l, int mode, int flags)
{
	return dlm_ls_lock_wait(ls, mode, l, flags, "a", 1, 0, NULL, NULL, NULL);
}

static int start(struct dlm_lksb *l, int mode, int flags)
{
	return dlm_ls_lock(ls, mode, l, flags, "a", 1, 0, cast, NULL, NULL, NULL);
}

static void dispatch(int wanted)
{
	while (casts < wanted) {
		struct pollfd p = { .fd = dlm_ls_get_fd(ls), .events = POLLIN };

		must("poll", poll(&p, 1, PATIENCE_MS) == 1);
		must("dispatch", dlm_dispatch(p.fd) == 0);
	}
	printf("  %d casts\n", casts);
	casts = 0;
}

int main(void)
{
	char lvb[DLM_LVB_LEN] = "written by an unlock", read[DLM_LVB_LEN] = "";
	struct dlm_lksb a = { .sb_lvbptr = lvb }, b = { .sb_lvbptr = read }, c = { 0 };
	uint64_t timeout = 5;

	ls = dlm_create_lockspace("own", 0600);
	must("dlm_create_lockspace", ls != NULL);

	ended("waits without a thread", wait_for(&b, LKM_NLMODE, 0), &b);
	ended("lock", wait_for(&a, LKM_EXMODE, 0), &a);
	ended("unlock with VALBLK", dlm_ls_unlock_wait(ls, a.sb_lkid, LKF_VALBLK, &a), &a);
	ended("read", wait_for(&b, LKM_CRMODE, LKF_CONVERT | LKF_VALBLK), &b);
	printf("%s\n", read);

	said("claim", dlm_ls_lock(ls, LKM_EXMODE, &c, LKF_NOTIFY, "new", 3, 0, cast, NULL, NULL, NULL));
	dispatch(1);
	ended("unlock waits after an asynchronous lock", dlm_ls_unlock_wait(ls, c.sb_lkid, 0, &c), &c);

	a.sb_lvbptr = NULL;
	said("unlock with VALBLK without a block",
	     dlm_ls_unlock(ls, b.sb_lkid, LKF_VALBLK, &a, NULL));
	said("no status block", dlm_ls_unlock(ls, b.sb_lkid, 0, NULL, NULL));
	said("no status block", start(NULL, LKM_EXMODE, 0));
	said("an empty name", dlm_ls_lock(ls, LKM_EXMODE, &a, 0, "", 0, 0, cast, NULL, NULL, NULL));
	said("a wrong handle", dlm_close_lockspace((dlm_lshandle_t)7));
	said("a wrong handle", dlm_ls_get_fd((dlm_lshandle_t)7));
	said("a wrong descriptor", dlm_dispatch(7000));
	said("no handle", dlm_ls_lock_wait(NULL, LKM_EXMODE, &a, 0, "a", 1, 0, NULL, NULL, NULL));
	printf("no name: %s\n", dlm_open_lockspace(NULL) ? "a lockspace" : word(errno));
	printf("no name: %s\n", dlm_create_lockspace("", 0600) ? "a lockspace" : word(errno));

	said("lockx waits at most so long",
	     dlm_ls_lockx(ls, LKM_EXMODE, &a, LKF_TIMEOUT, "a", 1, 0, cast, NULL, NULL, NULL, &timeout));
	dispatch(1);
	printf("status %s\n", word(a.sb_status));

	said("lock", start(&a, LKM_EXMODE, 0));
	ended("cancel waits", dlm_ls_unlock_wait(ls, a.sb_lkid, LKF_CANCEL, &c), &c);
	dispatch(1);
	printf("status %s\n", word(a.sb_status));
	ended("cancel nothing waits", dlm_ls_unlock_wait(ls, b.sb_lkid, LKF_CANCEL, &c), &c);
	ended("unlock", dlm_ls_unlock_wait(ls, b.sb_lkid, 0, &b), &b);

	ended("lock", wait_for(&a, LKM_EXMODE, 0), &a);
	said("release", dlm_release_lockspace("own", ls, 0));
	ls = dlm_create_lockspace("own", 0600);
	must("dlm_create_lockspace", ls != NULL);
	ended("lock NOQUEUE", wait_for(&a, LKM_EXMODE, LKF_NOQUEUE), &a);
	printf("open: %s\n", dlm_open_lockspace("own") ? "a lockspace" : word(errno));
	said("a lock of another handle",
	     dlm_ls_unlock(dlm_open_lockspace("own"), a.sb_lkid, 0, &a, NULL));
	said("purge of no node", dlm_ls_purge(ls, 9, 0));
	said("closes", dlm_close_lockspace(ls));
	said("closes once", dlm_close_lockspace(ls));
	return 0;
}
