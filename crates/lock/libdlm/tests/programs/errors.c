/* Refused calls, and their errors. */
#include "say.h"

static dlm_lshandle_t ls;

static void cast(void *arg)
{
	++*(int *)arg;
}

static int casts;

/* Dispatches what the last call has led to. */
static void settle(int wanted)
{
	int fd = dlm_ls_get_fd(ls);

	while (casts < wanted) {
		struct pollfd p = { .fd = fd, .events = POLLIN };

		must("poll", poll(&p, 1, PATIENCE_MS) == 1);
		must("dispatch", dlm_dispatch(fd) == 0);
	}
}

static const struct { int bit; const char *name; } flags[] = {
	{ LKF_NOQUEUE, "NOQUEUE" },	    { LKF_CANCEL, "CANCEL" },
	{ LKF_VALBLK, "VALBLK" },	    { LKF_QUECVT, "QUECVT" },
	{ LKF_IVVALBLK, "IVVALBLK" },	    { LKF_CONVDEADLK, "CONVDEADLK" },
	{ LKF_PERSISTENT, "PERSISTENT" },   { LKF_NODLCKWT, "NODLCKWT" },
	{ LKF_NODLCKBLK, "NODLCKBLK" },	    { LKF_EXPEDITE, "EXPEDITE" },
	{ LKF_NOQUEUEBAST, "NOQUEUEBAST" }, { LKF_HEADQUE, "HEADQUE" },
	{ LKF_NOORDER, "NOORDER" },	    { LKF_ALTPR, "ALTPR" },
	{ LKF_ALTCW, "ALTCW" },		    { LKF_FORCEUNLOCK, "FORCEUNLOCK" },
};
#define FLAGS (sizeof(flags) / sizeof(flags[0]))

static char lvb[DLM_LVB_LEN];

static void unlock(struct dlm_lksb *l)
{
	must("unlock", dlm_ls_unlock(ls, l->sb_lkid, 0, l, &casts) == 0);
	settle(casts + 1);
	must("unlocked", l->sb_status == EUNLOCK);
}

/* One new lock with these flags, NL and EX; then a conversion of an NL lock with them. */
static void try_flags(int f, const char *one, const char *two)
{
	for (int mode = LKM_NLMODE; mode <= LKM_EXMODE; mode += LKM_EXMODE) {
		struct dlm_lksb l = { .sb_lvbptr = lvb };
		int ret = dlm_ls_lock(ls, mode, &l, f, "a", 1, 0, cast, &casts, NULL, NULL);

		printf("%s %s %s: %d %s\n", modes[mode], one, two, ret, ret ? word(errno) : "");
		if (!ret) {
			settle(casts + 1);
			must("granted", l.sb_status == 0);
			unlock(&l);
		}
	}
	for (int mode = LKM_NLMODE; mode <= LKM_EXMODE; mode += LKM_EXMODE) {
		struct dlm_lksb l = { .sb_lvbptr = lvb };
		int ret = dlm_ls_lock(ls, LKM_NLMODE, &l, 0, "a", 1, 0, cast, &casts, NULL, NULL);

		must("lock", ret == 0);
		settle(casts + 1);
		/* Allowed calls are granted: nobody else is there. */
		ret = dlm_ls_lock(ls, mode, &l, f | LKF_CONVERT, NULL, 0, 0, cast, &casts, NULL, NULL);
		printf("NL to %s %s %s: %d %s\n", modes[mode], one, two, ret, ret ? word(errno) : "");
		if (!ret)
			settle(casts + 1);
		unlock(&l);
	}
}

int main(void)
{
	struct dlm_lksb l = { 0 }, with = { .sb_lvbptr = lvb };
	char name[65];
	int range = 1;

	memset(name, 'n', sizeof(name));
	ls = dlm_create_lockspace("errors", 0600);
	must("dlm_create_lockspace", ls != NULL);

	for (unsigned i = 0; i < FLAGS; i++) {
		try_flags(flags[i].bit, flags[i].name, "");
		for (unsigned j = 0; j < i; j++)
			try_flags(flags[i].bit | flags[j].bit, flags[i].name, flags[j].name);
	}

	for (int from = 0; from < 6; from++) {
		for (int to = 0; to < 6; to++) {
			int ret = dlm_ls_lock(ls, from, &l, 0, "q", 1, 0, cast, &casts, NULL, NULL);

			must("lock", ret == 0);
			settle(casts + 1);
			ret = dlm_ls_lock(ls, to, &l, LKF_CONVERT | LKF_QUECVT, NULL, 0, 0, cast, &casts,
					  NULL, NULL);
			printf("QUECVT %s to %s: %d %s\n", modes[from], modes[to], ret,
			       ret ? word(errno) : "");
			if (!ret)
				settle(casts + 1);
			unlock(&l);
		}
	}

#define LOCK(mode, l, flags, name, len, cast, range) \
	dlm_ls_lock(ls, mode, l, flags, name, len, 0, cast, &casts, NULL, range)
	said("mode 6", LOCK(6, &l, 0, "a", 1, cast, NULL));
	said("mode -1", LOCK(-1, &l, 0, "a", 1, cast, NULL));
	said("no routine", LOCK(LKM_EXMODE, &l, 0, "a", 1, NULL, NULL));
	said("a range", LOCK(LKM_EXMODE, &l, 0, "a", 1, cast, &range));
	said("no value block", LOCK(LKM_EXMODE, &l, LKF_VALBLK, "a", 1, cast, NULL));
	said("a name of 65", LOCK(LKM_EXMODE, &l, 0, name, 65, cast, NULL));
	l.sb_lkid = 0;
	said("convert without an id", LOCK(LKM_EXMODE, &l, LKF_CONVERT, NULL, 0, cast, NULL));
	l.sb_lkid = 0x7ffffff0;
	said("convert an unknown lock", LOCK(LKM_EXMODE, &l, LKF_CONVERT, NULL, 0, cast, NULL));
	said("unlock an unknown lock", dlm_ls_unlock(ls, 0x7ffffff0, 0, &l, NULL));
	said("cancel an unknown lock", dlm_ls_unlock(ls, 0x7ffffff0, LKF_CANCEL, &l, NULL));
	said("unlock none", dlm_ls_unlock(ls, 0, 0, &l, NULL));
	said("unlock in no lockspace", dlm_ls_unlock(NULL, 1, 0, &l, NULL));
	said("purge in no lockspace", dlm_ls_purge(NULL, 0, 0));
	said("deadlock in no lockspace", dlm_ls_deadlock_cancel(NULL, 1, 0));

	said("lock", LOCK(LKM_EXMODE, &with, 0, name, 64, cast, NULL));
	settle(casts + 1);
	said("cancel and force", dlm_ls_unlock(ls, with.sb_lkid, LKF_CANCEL | LKF_FORCEUNLOCK, &with,
					       NULL));
	said("unlock with a lock's flag", dlm_ls_unlock(ls, with.sb_lkid, LKF_NOQUEUE, &with, NULL));
	said("invalidate", dlm_ls_unlock(ls, with.sb_lkid, LKF_IVVALBLK, &with, NULL));
	settle(casts + 1);

	printf("open: %s\n", dlm_open_lockspace("nowhere") ? "a lockspace" : word(errno));
	printf("new: %s\n", dlm_new_lockspace("errors", 0600, DLM_LSFL_NEWEXCL) ? "a lockspace" :
	       word(errno));
	said("release", dlm_release_lockspace("errors", ls, 0));
	return 0;
}
