/* One process that is a client of two nodes: Lockify only. The arguments are the nodes' sockets. */
#include "say.h"

static dlm_lshandle_t one, two;
static int casts, basts;

static void cast(void *arg)
{
	(void)arg;
	casts++;
}

static void bast(void *arg)
{
	(void)arg;
	basts++;
}

static void dispatch(dlm_lshandle_t ls, const int *what, int wanted)
{
	while (*what < wanted) {
		struct pollfd p = { .fd = dlm_ls_get_fd(ls), .events = POLLIN };

		must("poll", poll(&p, 1, PATIENCE_MS) == 1);
		must("dispatch", dlm_dispatch(p.fd) == 0);
	}
}

static int wait_for(dlm_lshandle_t ls, struct dlm_lksb *l, int mode, int flags)
{
	return dlm_ls_lock_wait(ls, mode, l, flags, "a", 1, 0, NULL, bast, NULL);
}

int main(int argc, char **argv)
{
	char written[DLM_LVB_LEN] = "", read[DLM_LVB_LEN] = "";
	struct dlm_lksb a = { .sb_lvbptr = written }, b = { .sb_lvbptr = read };

	must("two sockets", argc == 3 && setenv("LOCKIFY_SOCKET", argv[1], 1) == 0);
	one = dlm_create_lockspace("nodes", 0600);
	setenv("LOCKIFY_SOCKET", argv[2], 1);
	two = dlm_create_lockspace("nodes", 0600);
	must("two lockspaces", one && two);

	ended("lock on one", wait_for(one, &a, LKM_EXMODE, LKF_VALBLK), &a);
	ended("NOQUEUE on two", wait_for(two, &b, LKM_PRMODE, LKF_NOQUEUE), &b);
	said("lock on two", dlm_ls_lock(two, LKM_PRMODE, &b, LKF_VALBLK, "a", 1, 0, cast, NULL, bast,
					NULL));
	dispatch(one, &basts, 1);
	printf("one is told\n");
	strcpy(written, "from one to two");
	ended("convert on one", wait_for(one, &a, LKM_NLMODE, LKF_CONVERT | LKF_VALBLK), &a);
	dispatch(two, &casts, 1);
	printf("two: status %s, %s\n", word(b.sb_status), read);
	ended("unlock on two", dlm_ls_unlock_wait(two, b.sb_lkid, 0, &b), &b);

	printf("a wait that is cancelled\n");
	ended("convert on one", wait_for(one, &a, LKM_EXMODE, LKF_CONVERT), &a);
	said("lock on two", dlm_ls_lock(two, LKM_PRMODE, &b, 0, "a", 1, 0, cast, NULL, NULL, NULL));
	said("cancel on two", dlm_ls_unlock(two, b.sb_lkid, LKF_CANCEL, &b, NULL));
	dispatch(two, &casts, 2);
	printf("two: status %s\n", word(b.sb_status));
	said("lock on two", dlm_ls_lock(two, LKM_PRMODE, &b, 0, "a", 1, 0, cast, NULL, NULL, NULL));
	said("end it on two", dlm_ls_deadlock_cancel(two, b.sb_lkid, 0));
	dispatch(two, &casts, 3);
	printf("two: status %s\n", word(b.sb_status));
	ended("unlock on one", dlm_ls_unlock_wait(one, a.sb_lkid, 0, &a), &a);

	printf("an orphan of another node\n");
	ended("lock on two", wait_for(two, &b, LKM_EXMODE, LKF_PERSISTENT), &b);
	said("close two", dlm_close_lockspace(two));
	ended("NOQUEUE on one", wait_for(one, &a, LKM_PRMODE, LKF_NOQUEUE), &a);
	said("purge another process's", dlm_ls_purge(one, 2, getpid() + 1));
	ended("NOQUEUE on one", wait_for(one, &a, LKM_PRMODE, LKF_NOQUEUE), &a);
	said("purge this process's", dlm_ls_purge(one, 2, getpid()));
	ended("lock on one", wait_for(one, &a, LKM_PRMODE, 0), &a);
	said("purge of no node", dlm_ls_purge(one, 9, 0));
	ended("unlock on one", dlm_ls_unlock_wait(one, a.sb_lkid, 0, &a), &a);
	said("release one", dlm_release_lockspace("nodes", one, 0));
	return 0;
}
