/* A user who is neither root nor the daemon's: Lockify only. */
#include "say.h"

int main(void)
{
	struct dlm_lksb l = { 0 };
	dlm_lshandle_t ls = dlm_create_lockspace("new", 0600);

	printf("create: %s\n", ls ? "a lockspace" : strerror(errno));
	ls = dlm_open_lockspace("default");
	must("dlm_open_lockspace", ls != NULL);
	ended("lock", dlm_ls_lock_wait(ls, LKM_EXMODE, &l, 0, "a", 1, 0, NULL, NULL, NULL), &l);
	said("release", dlm_release_lockspace("default", ls, 1));
	printf("%s\n", strerror(errno));
	return 0;
}
