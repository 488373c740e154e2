/* Transactions: with one, a lock can wait for another of the same handle, which is a deadlock then. */
#include "say.h"

static dlm_lshandle_t ls;

static int lock(struct dlm_lksb *l, const char *name, uint32_t flags, uint64_t xid)
{
	return dlm_ls_lockx(ls, LKM_EXMODE, l, flags | LKF_WAIT, name, strlen(name), 0, NULL, NULL,
			    NULL, xid ? &xid : NULL, NULL);
}

int main(void)
{
	struct dlm_lksb one = { 0 }, two = { 0 }, three = { 0 };

	ls = dlm_open_lockspace("default");
	must("dlm_open_lockspace", ls != NULL);
	ended("one of transaction 7", lock(&one, "a", 0, 7), &one);
	ended("another of it", lock(&two, "a", 0, 7), &two);
	ended("a third of none", lock(&three, "b", 0, 0), &three);
	return 0;
}
