/* The order of grants, value blocks, and what the status block says: tables for comparison. */
#include "say.h"

static dlm_lshandle_t ls;

static int lock(struct dlm_lksb *l, int mode, int flags)
{
	return dlm_ls_lock_wait(ls, mode, l, flags, "a", 1, 0, NULL, NULL, NULL);
}

static int convert(struct dlm_lksb *l, int mode, int flags)
{
	return lock(l, mode, flags | LKF_CONVERT);
}

static void unlock(struct dlm_lksb *l)
{
	must("unlock", dlm_ls_unlock_wait(ls, l->sb_lkid, 0, l) == 0 && l->sb_status == EUNLOCK);
}

static void compatible(void)
{
	for (int held = 0; held < 6; held++) {
		for (int wanted = 0; wanted < 6; wanted++) {
			struct dlm_lksb a = { 0 }, b = { 0 };

			must("lock", lock(&a, held, 0) == 0);
			must("lock", lock(&b, wanted, LKF_NOQUEUE) == 0);
			printf("%s beside %s: %s\n", modes[wanted], modes[held], word(b.sb_status));
			if (!b.sb_status)
				unlock(&b);
			unlock(&a);
		}
	}
}

static void alternatives(void)
{
	for (int held = 0; held < 6; held++) {
		for (int wanted = 0; wanted < 6; wanted++) {
			for (int alt = LKF_ALTPR; alt <= LKF_ALTCW; alt *= 2) {
				struct dlm_lksb a = { 0 }, b = { 0 };

				must("lock", lock(&a, held, 0) == 0);
				must("lock", lock(&b, wanted, LKF_NOQUEUE | alt) == 0);
				printf("%s or %s beside %s: %s, flags %x\n", modes[wanted],
				       alt == LKF_ALTPR ? "PR" : "CW", modes[held],
				       word(b.sb_status), b.sb_flags);
				if (!b.sb_status)
					unlock(&b);
				unlock(&a);
			}
		}
	}
}

static void show(const char *what, const struct dlm_lksb *l)
{
	printf("%s: %s, flags %x, value %02x%02x\n", what, word(l->sb_status), l->sb_flags,
	       (unsigned char)l->sb_lvbptr[0], (unsigned char)l->sb_lvbptr[DLM_LVB_LEN - 1]);
}

/* Every transition with a value block: what does the caller see, and what do others afterwards? */
static void values(int flags, const char *name)
{
	for (int from = 0; from < 6; from++) {
		for (int to = 0; to < 6; to++) {
			char mine[DLM_LVB_LEN], theirs[DLM_LVB_LEN], what[64];
			struct dlm_lksb keep = { .sb_lvbptr = theirs }, l = { .sb_lvbptr = mine };

			/* The resource has 11 and stays because of this one. */
			memset(theirs, 0x11, sizeof(theirs));
			must("lock", lock(&keep, LKM_EXMODE, LKF_VALBLK) == 0);
			memset(theirs, 0x11, sizeof(theirs));
			must("convert", convert(&keep, LKM_NLMODE, LKF_VALBLK) == 0);

			memset(mine, 0x22, sizeof(mine));
			must("lock", lock(&l, from, LKF_VALBLK) == 0 && !l.sb_status);
			memset(mine, 0x33, sizeof(mine));
			must("convert", convert(&l, to, LKF_VALBLK | flags) == 0 && !l.sb_status);
			snprintf(what, sizeof(what), "%s %s to %s", name, modes[from], modes[to]);
			show(what, &l);
			/* The write of an unlock of PW and EX is another matter. */
			must("convert", convert(&l, LKM_NLMODE, 0) == 0);
			unlock(&l);
			memset(theirs, 0x44, sizeof(theirs));
			must("convert", convert(&keep, LKM_CRMODE, LKF_VALBLK) == 0);
			show("  others", &keep);
			unlock(&keep);
		}
	}
}

static void new_value(void)
{
	char lvb[DLM_LVB_LEN];
	struct dlm_lksb l = { .sb_lvbptr = lvb };

	memset(lvb, 0x55, sizeof(lvb));
	must("lock", lock(&l, LKM_EXMODE, LKF_VALBLK) == 0);
	show("a value never written", &l);
	memset(lvb, 0x66, sizeof(lvb));
	must("convert", convert(&l, LKM_PRMODE, LKF_VALBLK) == 0);
	show("written", &l);
	must("invalidate", dlm_ls_unlock_wait(ls, l.sb_lkid, LKF_IVVALBLK, &l) == 0);
	must("lock", lock(&l, LKM_CRMODE, LKF_VALBLK) == 0);
	show("gone with the last lock", &l);
	unlock(&l);
}

static void deadlock(void)
{
	struct dlm_lksb a = { 0 }, b = { 0 };

	/* b converts first and waits for a; a's own conversion would wait for b. */
	must("lock", lock(&a, LKM_PRMODE, 0) == 0 && lock(&b, LKM_PRMODE, 0) == 0);
	ended("convert NOQUEUE", convert(&a, LKM_EXMODE, LKF_NOQUEUE), &a);
	unlock(&a);
	ended("convert alone", convert(&b, LKM_EXMODE, 0), &b);
	unlock(&b);
	ended("EXPEDITE", lock(&a, LKM_NLMODE, LKF_EXPEDITE), &a);
	unlock(&a);
}

int main(void)
{
	ls = dlm_create_lockspace("grants", 0600);
	must("dlm_create_lockspace", ls != NULL);
	must("a thread", dlm_ls_pthread_init(ls) == 0);
	compatible();
	alternatives();
	values(0, "VALBLK");
	values(LKF_IVVALBLK, "IVVALBLK");
	new_value();
	deadlock();
	said("release", dlm_release_lockspace("grants", ls, 0));
	return 0;
}
