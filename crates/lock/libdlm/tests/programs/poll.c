/* Asynchronous calls without threads: the program polls the descriptor and dispatches. */
#include "say.h"

static dlm_lshandle_t ls;

struct lock {
	struct dlm_lksb lksb;
	char lvb[DLM_LVB_LEN];
	const char *name;
	int casts, basts;
};

static void cast(void *arg)
{
	struct lock *l = arg;

	l->casts++;
	printf("  cast of %s: status %s, flags %x\n", l->name, word(l->lksb.sb_status),
	       l->lksb.sb_flags);
}

static void bast(void *arg)
{
	struct lock *l = arg;

	l->basts++;
	printf("  bast of %s\n", l->name);
}

static void other_cast(void *arg)
{
	printf("  the other routine\n");
	cast(arg);
}

/* Dispatches until both have happened so often. */
static void until(const struct lock *l, int casts, int basts)
{
	int fd = dlm_ls_get_fd(ls), tries = 0;

	while (l->casts < casts || l->basts < basts) {
		struct pollfd p = { .fd = fd, .events = POLLIN };

		must("poll", poll(&p, 1, PATIENCE_MS) == 1 && tries++ < 1000);
		must("dispatch", dlm_dispatch(fd) == 0);
	}
	printf("%s: %d casts, %d basts\n", l->name, l->casts, l->basts);
	fflush(stdout);
}

static int lock(struct lock *l, int mode, int flags)
{
	l->lksb.sb_lvbptr = l->lvb;
	return dlm_ls_lock(ls, mode, &l->lksb, flags, "a", 1, 0, cast, l, bast, NULL);
}

int main(void)
{
	struct lock one = { .name = "one" }, two = { .name = "two" }, three = { .name = "three" };
	struct dlm_lksb fresh = { 0 };
	uint64_t xid = 7;

	ls = dlm_create_lockspace("poll", 0600);
	must("dlm_create_lockspace", ls != NULL);
	must("dlm_ls_get_fd", dlm_ls_get_fd(ls) >= 0);
	said("dispatch with nothing to tell", dlm_dispatch(dlm_ls_get_fd(ls)));

	said("lock one EX", lock(&one, LKM_EXMODE, 0));
	must("a lock id", one.lksb.sb_lkid > 0);
	until(&one, 1, 0);

	printf("two waits, one is told\n");
	said("lock two PR", lock(&two, LKM_PRMODE, 0));
	until(&one, 1, 1);
	said("convert one to NL", lock(&one, LKM_NLMODE, LKF_CONVERT));
	until(&one, 2, 1);
	until(&two, 1, 0);

	printf("a conversion that is cancelled\n");
	said("convert one to EX", lock(&one, LKM_EXMODE, LKF_CONVERT));
	until(&two, 1, 1);
	said("convert one again", lock(&one, LKM_PRMODE, LKF_CONVERT));
	said("cancel one", dlm_ls_unlock(ls, one.lksb.sb_lkid, LKF_CANCEL, &one.lksb, &one));
	until(&one, 3, 1);
	said("cancel again", dlm_ls_unlock(ls, one.lksb.sb_lkid, LKF_CANCEL, &fresh, &one));
	said("cancel nothing", dlm_ls_unlock(ls, two.lksb.sb_lkid, LKF_CANCEL, &fresh, &two));
	said("convert one NOQUEUE", lock(&one, LKM_EXMODE, LKF_CONVERT | LKF_NOQUEUE));
	until(&one, 4, 1);

	printf("a request that is cancelled\n");
	said("lock three EX", lock(&three, LKM_EXMODE, 0));
	said("cancel three", dlm_ls_unlock(ls, three.lksb.sb_lkid, LKF_CANCEL, &three.lksb, &three));
	until(&three, 1, 0);
	said("unlock three", dlm_ls_unlock(ls, three.lksb.sb_lkid, 0, &three.lksb, &three));

	printf("a request that is unlocked by force\n");
	said("lock three EX", lock(&three, LKM_EXMODE, 0));
	said("force three",
	     dlm_ls_unlock(ls, three.lksb.sb_lkid, LKF_FORCEUNLOCK, &three.lksb, &three));
	until(&three, 2, 0);

	printf("one that is unlocked without force\n");
	said("lock three EX", lock(&three, LKM_EXMODE, 0));
	said("unlock three", dlm_ls_unlock(ls, three.lksb.sb_lkid, 0, &three.lksb, &three));
	until(&three, 3, 0);

	printf("a request that ends as a deadlock's victim\n");
	said("lock three EX", lock(&three, LKM_EXMODE, 0));
	said("end it", dlm_ls_deadlock_cancel(ls, three.lksb.sb_lkid, 0));
	until(&three, 4, 0);
	said("end nothing", dlm_ls_deadlock_cancel(ls, two.lksb.sb_lkid, 0));
	said("end an unknown one", dlm_ls_deadlock_cancel(ls, 0x7ffffff0, 0));
	said("end none", dlm_ls_deadlock_cancel(ls, 0, 0));

	printf("a refused request that tells those in the way\n");
	two.basts = 0;
	said("lock three NOQUEUE", lock(&three, LKM_EXMODE, LKF_NOQUEUE));
	until(&three, 5, 0);
	printf("two: %d basts\n", two.basts);
	said("lock three NOQUEUE NOQUEUEBAST", lock(&three, LKM_EXMODE, LKF_NOQUEUE | LKF_NOQUEUEBAST));
	until(&three, 6, 0);

	printf("lockx, another routine, another argument\n");
	said("convert two", dlm_ls_lockx(ls, LKM_CRMODE, &two.lksb, LKF_CONVERT, NULL, 0, 0, other_cast,
					 &two, NULL, &xid, NULL));
	until(&two, 2, 0);
	said("unlock two", dlm_ls_unlock(ls, two.lksb.sb_lkid, 0, &one.lksb, &one));
	until(&one, 5, 1);
	printf("two's own block: %s\n", word(two.lksb.sb_status));

	said("close", dlm_close_lockspace(ls));
	ls = dlm_open_lockspace("poll");
	must("dlm_open_lockspace", ls != NULL);
	said("lock three NOQUEUE", lock(&three, LKM_EXMODE, LKF_NOQUEUE));
	until(&three, 7, 0);
	said("unlock three", dlm_ls_unlock(ls, three.lksb.sb_lkid, 0, &three.lksb, &three));
	until(&three, 8, 0);
	said("release", dlm_release_lockspace("poll", ls, 0));
	ls = dlm_open_lockspace("poll");
	printf("open: %s\n", ls ? "a lockspace" : "none");
	return 0;
}
