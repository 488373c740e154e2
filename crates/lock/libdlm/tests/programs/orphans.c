/* Persistent locks whose processes have ended, and purging them. */
#include <sys/wait.h>

#include "say.h"

static dlm_lshandle_t ls;

static void never(void *arg)
{
	(void)arg;
	printf("  an adoption has no callback, but this one was called\n");
}

static int lock(struct dlm_lksb *l, int mode, int flags, const char *name)
{
	return dlm_ls_lock_wait(ls, mode, l, flags, name, strlen(name), 0, NULL, NULL, NULL);
}

/* A process that ends without unlocking what it has; returns its id. */
static int left_behind(int mode, const char *name)
{
	int status, pid = fork();

	must("fork", pid >= 0);
	if (pid == 0) {
		struct dlm_lksb kept = { 0 }, other = { 0 };

		ls = dlm_open_lockspace("orphans");
		must("dlm_open_lockspace", ls != NULL);
		must("a thread", dlm_ls_pthread_init(ls) == 0);
		must("lock", lock(&kept, mode, LKF_PERSISTENT, name) == 0 && kept.sb_status == 0);
		must("lock", lock(&other, LKM_EXMODE, 0, "ordinary") == 0 && other.sb_status == 0);
		_exit(0);
	}
	must("waitpid", waitpid(pid, &status, 0) == pid && status == 0);
	return pid;
}

/* Returns true if nobody blocks EX. The end of a process takes a moment. */
static void is_free(const char *name, int wanted)
{
	struct dlm_lksb probe = { 0 };

	for (int tries = 0; tries < 3000; tries++) {
		int free;

		must("probe", lock(&probe, LKM_EXMODE, LKF_NOQUEUE, name) == 0);
		free = !probe.sb_status;
		if (free)
			must("unlock", dlm_ls_unlock_wait(ls, probe.sb_lkid, 0, &probe) == 0);
		if (free == wanted) {
			printf("%s is %s\n", name, free ? "free" : "locked");
			return;
		}
		usleep(10000);
	}
	printf("%s should be %s\n", name, wanted ? "free" : "locked");
}

static void adopt(const char *what, int mode, const char *name, struct dlm_lksb *l)
{
	memset(l, 0, sizeof(*l));
	said(what, dlm_ls_lock(ls, mode, l, LKF_ORPHAN | LKF_PERSISTENT, name, strlen(name), 0, never,
			       NULL, NULL, NULL));
}

int main(void)
{
	struct dlm_lksb l = { 0 }, none = { 0 };
	dlm_lshandle_t maker;
	int first, second;

	/* Children open it for themselves: this one only makes it. */
	maker = dlm_create_lockspace("orphans", 0600);
	must("dlm_create_lockspace", maker != NULL);
	first = left_behind(LKM_EXMODE, "first");
	second = left_behind(LKM_PRMODE, "second");
	ls = maker;
	must("a thread", dlm_ls_pthread_init(ls) == 0);
	is_free("ordinary", 1);
	is_free("first", 0);
	is_free("second", 0);

	adopt("adopt nothing", LKM_EXMODE, "nothing", &none);
	adopt("adopt second in another mode", LKM_EXMODE, "second", &none);
	adopt("adopt first", LKM_EXMODE, "first", &l);
	must("an id", l.sb_lkid > 0);
	printf("status %s\n", word(l.sb_status));
	adopt("adopt first again", LKM_EXMODE, "first", &none);
	ended("convert first", lock(&l, LKM_CRMODE, LKF_CONVERT, ""), &l);
	ended("unlock first", dlm_ls_unlock_wait(ls, l.sb_lkid, 0, &l), &l);
	is_free("first", 1);

	said("purge the wrong process", dlm_ls_purge(ls, 0, first));
	is_free("second", 0);
	said("purge the right process", dlm_ls_purge(ls, 0, second));
	is_free("second", 1);

	first = left_behind(LKM_PRMODE, "third");
	second = left_behind(LKM_PRMODE, "third");
	said("purge all", dlm_ls_purge(ls, 0, 0));
	is_free("third", 1);

	ended("lock own", lock(&l, LKM_EXMODE, LKF_PERSISTENT, "own"), &l);
	said("purge own", dlm_ls_purge(ls, 0, getpid()));
	is_free("own", 1);
	said("unlock own", dlm_ls_unlock(ls, l.sb_lkid, 0, &l, NULL));
	said("release", dlm_release_lockspace("orphans", ls, 1));
	return 0;
}
